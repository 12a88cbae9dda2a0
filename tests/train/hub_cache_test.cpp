// Models that are named as on the Hugging Face hub.
#include "snug/train/hub_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/train/model_files.h"
#include "tests/base/scratch.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using snug::testing::scratch;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// A cache as huggingface_hub leaves it, named by HF_HUB_CACHE while this lives.
class HubCache : public ::testing::Test {
 protected:
  HubCache() : cache_(scratch("hub_cache/hub")) {
    const fs::path model = cache_ / "models--some-owner--Tiny-1.5B";
    fs::create_directories(model / "refs");
    fs::create_directories(model / "snapshots" / "0a1b2c");
    write_text(model / "refs" / "main", "0a1b2c");
    write_text(model / "snapshots" / "0a1b2c" / "config.json", "{}");
    ::setenv("HF_HUB_CACHE", cache_.c_str(), 1);
  }
  ~HubCache() override { ::unsetenv("HF_HUB_CACHE"); }

  static std::string refusal_of(const std::string& name) {
    try {
      const ModelFiles files(name);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "not refused";
  }
  fs::path cache_;
};

TEST_F(HubCache, TheFolderOfADownloadedModelIsNamed) {
  const fs::path snapshot = cache_ / "models--some-owner--Tiny-1.5B" / "snapshots" / "0a1b2c";
  EXPECT_EQ(cached_snapshot("some-owner/Tiny-1.5B"), snapshot);
  EXPECT_THAT(refusal_of("some-owner/Tiny-1.5B"),
              AllOf(HasSubstr("no such file or folder"), HasSubstr(snapshot.string())));
}

TEST_F(HubCache, OfAnotherModelTheMessageSaysHowToDownloadIt) {
  EXPECT_EQ(cached_snapshot("some-owner/Other"), std::nullopt);
  EXPECT_THAT(refusal_of("some-owner/Other"),
              AllOf(HasSubstr("snug downloads nothing"), HasSubstr("hf download some-owner/Other --local-dir Other")));
}

/// A download that was cut off, and a revision that would lead out of the cache.
TEST_F(HubCache, WhatIsNotWholeIsNotNamed) {
  const fs::path model = cache_ / "models--some-owner--Tiny-1.5B";
  fs::remove(model / "snapshots" / "0a1b2c" / "config.json");
  EXPECT_EQ(cached_snapshot("some-owner/Tiny-1.5B"), std::nullopt);
  write_text(model / "refs" / "main", "../../elsewhere");
  EXPECT_EQ(cached_snapshot("some-owner/Tiny-1.5B"), std::nullopt);
}

TEST_F(HubCache, PathsAreNoNames) {
  EXPECT_TRUE(is_hub_name("some-owner/Other"));
  for (const char* path : {"Other", "./Other", "/some-owner/Other", "some-owner/models/Other", "models/other.gguf",
                           "some-owner/", "../Other", ""}) {
    EXPECT_FALSE(is_hub_name(path)) << path;
  }
  const fs::path before = fs::current_path();
  fs::current_path(cache_);
  EXPECT_FALSE(is_hub_name("models--some-owner--Tiny-1.5B/refs")) << "which is there";
  fs::current_path(before);
}

}  // namespace
}  // namespace snug::train
