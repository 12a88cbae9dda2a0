#include "snug/memory/tag.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

namespace snug::memory {
namespace {

TEST(Tag, HasANameEach) {
  EXPECT_EQ(tag_name(Tag::Weights), "weights");
  EXPECT_EQ(tag_name(Tag::Gradients), "gradients");
  EXPECT_EQ(tag_name(Tag::Optimizer), "optimizer");
  EXPECT_EQ(tag_name(Tag::Activations), "activations");
  EXPECT_EQ(tag_name(Tag::Staging), "staging");
  EXPECT_EQ(tag_name(Tag::Workspace), "workspace");
  EXPECT_EQ(static_cast<std::size_t>(Tag::Workspace) + 1, kTags);
  EXPECT_EQ(std::set<std::string_view>(kTagNames.begin(), kTagNames.end()).size(), kTags);
}

TEST(TagScope, NestsAndRestores) {
  EXPECT_EQ(current_tag(), Tag::Workspace);
  {
    const TagScope outer(Tag::Weights);
    EXPECT_EQ(current_tag(), Tag::Weights);
    {
      const TagScope inner(Tag::Activations);
      EXPECT_EQ(current_tag(), Tag::Activations);
    }
    EXPECT_EQ(current_tag(), Tag::Weights);
  }
  EXPECT_EQ(current_tag(), Tag::Workspace);
}

TEST(TagScope, BelongsToItsThread) {
  const TagScope here(Tag::Optimizer);
  Tag there = Tag::Optimizer;
  std::thread([&] { there = current_tag(); }).join();
  EXPECT_EQ(there, Tag::Workspace);
  EXPECT_EQ(current_tag(), Tag::Optimizer);
}

}  // namespace
}  // namespace snug::memory
