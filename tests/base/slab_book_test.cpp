#include "snug/base/slab_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace snug {
namespace {

TEST(SlabBook, TakesLargePiecesAndUsesThemAgain) {
  SlabBook book;
  std::vector<std::pair<SlabBook::Block, Bytes>> first;
  for (int step = 0; step < 3; ++step) {
    std::vector<std::pair<SlabBook::Block, Bytes>> blocks;
    for (const Bytes bytes : {12_MiB, 12_MiB, 12_MiB, 40_MiB})
      blocks.emplace_back(book.take(bytes).value().block, bytes);
    EXPECT_EQ(book.held(), 32_MiB + 32_MiB + 64_MiB) << "no step takes more than the first";
    if (step == 0) first = blocks;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(blocks[i].first.slab, first[i].first.slab);
      EXPECT_EQ(blocks[i].first.offset, first[i].first.offset);
    }
    for (const auto& [block, bytes] : blocks) book.give(block, bytes);
  }
}

TEST(SlabBook, HasABudgetThatPowersOfTwoCountIn) {
  SlabBook book(48_MiB);
  EXPECT_FALSE(book.take(33_MiB)) << "which would be 64";
  const auto small = book.take(16_MiB).value();
  EXPECT_TRUE(small.is_new);
  EXPECT_EQ(book.held(), 32_MiB);
  EXPECT_FALSE(book.take(20_MiB)) << "neither the rest of the first nor the 16 that are left have room";
  const auto rest = book.take(16_MiB).value();
  EXPECT_FALSE(rest.is_new);
  const auto last = book.take(10_MiB).value();
  EXPECT_TRUE(last.is_new);
  EXPECT_EQ(book.held(), 48_MiB);
  EXPECT_FALSE(book.take(7_MiB));
  EXPECT_TRUE(book.take(6_MiB));
}

TEST(SlabBook, LetsGoOfThoseThatAreTooSmall) {
  SlabBook book(64_MiB);
  const auto first = book.take(20_MiB).value();
  EXPECT_FALSE(book.take(60_MiB)) << "the first is in use";
  book.give(first.block, 20_MiB);
  const auto large = book.take(60_MiB).value();
  EXPECT_THAT(large.gone, ::testing::ElementsAre(first.block.slab));
  EXPECT_EQ(book.held(), 64_MiB);
}

TEST(SlabBook, KeepsBlocksApartAndWithinItsBudget) {
  std::mt19937 random(4);
  SlabBook book(100_MiB);
  std::vector<std::pair<SlabBook::Block, Bytes>> blocks;
  int refused = 0;
  for (int i = 0; i < 5000; ++i) {
    if (blocks.empty() || random() % 2 == 0) {
      const Bytes bytes = static_cast<Bytes>(1 + random() % 4000) * 4_KiB;
      const auto taken = book.take(bytes);
      if (!taken) {
        ++refused;
        continue;
      }
      for (const auto& [other, length] : blocks) {
        ASSERT_TRUE(other.slab != taken->block.slab || other.offset + length <= taken->block.offset ||
                    taken->block.offset + bytes <= other.offset);
      }
      blocks.emplace_back(taken->block, bytes);
    } else {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      book.give(blocks.back().first, blocks.back().second);
      blocks.pop_back();
    }
    ASSERT_LE(book.held(), 100_MiB);
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace snug
