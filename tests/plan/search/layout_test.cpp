#include "snug/plan/search/layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <random>
#include <tuple>

namespace snug::plan {
namespace {

/// That no two blocks are at one place at one time, and none reaches beyond the end.
void expect_apart(const std::vector<TimedBlock>& blocks, const Layout& layout) {
  ASSERT_EQ(layout.offsets.size(), blocks.size());
  for (std::size_t a = 0; a < blocks.size(); ++a) {
    ASSERT_GE(layout.offsets[a], 0);
    ASSERT_LE(layout.offsets[a] + blocks[a].bytes, layout.bytes);
    for (std::size_t b = 0; b < a; ++b) {
      const bool same_time = blocks[a].begin < blocks[b].end && blocks[b].begin < blocks[a].end;
      const bool same_place = layout.offsets[a] < layout.offsets[b] + blocks[b].bytes &&
                              layout.offsets[b] < layout.offsets[a] + blocks[a].bytes;
      ASSERT_FALSE(same_time && same_place) << a << " and " << b;
    }
  }
}

/// Of all layouts that put each block, in some order, as low as it can be, the smallest: one of them is the best.
Bytes smallest_of_all(const std::vector<TimedBlock>& blocks) {
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  Bytes smallest = std::numeric_limits<Bytes>::max();
  do {
    std::vector<Bytes> offsets(blocks.size(), -1);
    Bytes top = 0;
    for (const std::size_t block : order) {
      Bytes offset = 0;
      for (bool moved = true; moved;) {
        moved = false;
        for (std::size_t other = 0; other < blocks.size(); ++other) {
          if (offsets[other] < 0 || blocks[other].end <= blocks[block].begin ||
              blocks[other].begin >= blocks[block].end)
            continue;
          if (offset >= offsets[other] + blocks[other].bytes || offsets[other] >= offset + blocks[block].bytes)
            continue;
          offset = offsets[other] + blocks[other].bytes;
          moved = true;
        }
      }
      offsets[block] = offset;
      top = std::max(top, offset + blocks[block].bytes);
    }
    smallest = std::min(smallest, top);
  } while (std::ranges::next_permutation(order).found);
  return smallest;
}

std::vector<TimedBlock> random_blocks(std::mt19937& random, std::size_t count, std::int64_t moments) {
  std::vector<TimedBlock> blocks;
  for (std::size_t i = 0; i < count; ++i) {
    const auto begin = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(moments));
    const auto length = static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(moments / 2));
    blocks.push_back({static_cast<Bytes>(1 + random() % 8) * 512, begin, begin + length});
  }
  return blocks;
}

TEST(Layout, NothingTakesNothing) { EXPECT_EQ(lay_out({}).bytes, 0); }

TEST(Layout, WhatIsThereAtOtherTimesLiesAtOnePlace) {
  const std::vector<TimedBlock> blocks = {{4096, 0, 2}, {4096, 2, 3}, {2048, 3, 5}};
  const Layout layout = lay_out(blocks);
  EXPECT_EQ(layout.bytes, 4096);
  EXPECT_EQ(layout.offsets, (std::vector<Bytes>{0, 0, 0}));
}

// In the order of requests the third block finds two gaps that are too small.
TEST(Layout, LeavesRoomForWhatComesLater) {
  const std::vector<TimedBlock> blocks = {{512, 0, 2}, {512, 0, 4}, {512, 0, 2}, {1024, 2, 4}};
  const Layout layout = lay_out(blocks);
  expect_apart(blocks, layout);
  EXPECT_EQ(layout.bytes, highest(blocks));
}

TEST(Layout, WhatAForwardPassKeepsAndABackwardPassGivesBackTakesNoMoreThanItsHighest) {
  std::vector<TimedBlock> blocks;
  constexpr std::int64_t kLayers = 50;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    blocks.push_back({8_KiB, 2 * i, 4 * kLayers - 2 * i});                         // is kept
    blocks.push_back({32_KiB, 2 * i, 2 * i + 1});                                  // is made on the way
    blocks.push_back({16_KiB, 4 * kLayers - 2 * i - 1, 4 * kLayers - 2 * i + 1});  // a gradient
  }
  const Layout layout = lay_out(blocks);
  expect_apart(blocks, layout);
  EXPECT_EQ(layout.bytes, highest(blocks));
}

TEST(Layout, LeavesOutWhatIsOccupied) {
  const std::vector<TimedBlock> blocks = {{1024, 0, 2}, {1024, 1, 3}, {2048, 3, 4}};
  const std::vector<Occupied> occupied = {{2048, 512}, {1024, 512}};
  const Layout layout = lay_out(blocks, occupied);
  expect_apart(blocks, layout);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (const auto& [offset, bytes] : occupied)
      EXPECT_TRUE(layout.offsets[i] + blocks[i].bytes <= offset || layout.offsets[i] >= offset + bytes) << i;
  }
  EXPECT_EQ(layout.offsets[0], 0);     // in front of both
  EXPECT_EQ(layout.offsets[2], 2560);  // behind
}

TEST(Layout, OfFewBlocksItIsTheBestThereIsOrNearIt) {
  std::mt19937 random(1);
  int best = 0;
  constexpr int kTries = 300;
  for (int i = 0; i < kTries; ++i) {
    const std::vector<TimedBlock> blocks = random_blocks(random, 7, 8);
    const Layout layout = lay_out(blocks);
    expect_apart(blocks, layout);
    const Bytes smallest = smallest_of_all(blocks);
    EXPECT_GE(smallest, highest(blocks));
    EXPECT_GE(layout.bytes, smallest);
    EXPECT_LE(layout.bytes, smallest * 5 / 4);
    best += layout.bytes == smallest ? 1 : 0;
  }
  EXPECT_GE(best, kTries * 95 / 100);
}

TEST(Layout, OfManyBlocksItIsFoundInTimeAndTheSameEachTime) {
  std::mt19937 random(2);
  const std::vector<TimedBlock> blocks = random_blocks(random, 20'000, 40'000);
  const Layout layout = lay_out(blocks);
  EXPECT_LE(static_cast<double>(layout.bytes), 1.1 * static_cast<double>(highest(blocks)));
  EXPECT_EQ(lay_out(blocks).offsets, layout.offsets);
}

/// The same as expect_apart, in n log n.
void expect_apart_in_time(const std::vector<TimedBlock>& blocks, const Layout& layout,
                          const std::vector<Occupied>& occupied) {
  std::vector<std::tuple<std::int64_t, bool, std::size_t>> changes;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    changes.emplace_back(blocks[i].begin, true, i);
    changes.emplace_back(blocks[i].end, false, i);
  }
  std::ranges::sort(changes);
  std::map<Bytes, Bytes> there;  // where blocks begin and end
  for (const auto& [offset, bytes] : occupied) there.emplace(offset, offset + bytes);
  for (const auto& [moment, begins, i] : changes) {
    const Bytes offset = layout.offsets[i], end = offset + blocks[i].bytes;
    if (!begins) {
      there.erase(offset);
      continue;
    }
    ASSERT_LE(end, layout.bytes);
    const auto [at, added] = there.emplace(offset, end);
    ASSERT_TRUE(added) << i;
    ASSERT_TRUE(at == there.begin() || std::prev(at)->second <= offset) << i;
    ASSERT_TRUE(std::next(at) == there.end() || std::next(at)->first >= end) << i;
  }
}

TEST(Layout, OfAStepOfAHundredThousandOperatorsItIsFoundInTime) {
  std::vector<TimedBlock> blocks;
  constexpr std::int64_t kOps = 100'000;
  std::mt19937 random(3);
  for (std::int64_t i = 0; i < kOps; ++i) {
    const auto bytes = [&] { return static_cast<Bytes>(1 + random() % 16) * 512; };
    blocks.push_back({bytes(), 2 * i, 4 * kOps - 2 * i});
    blocks.push_back({bytes(), 2 * i, 2 * i + 1});
    blocks.push_back({bytes(), 4 * kOps - 2 * i - 1, 4 * kOps - 2 * i + 1});
  }
  const std::vector<Occupied> occupied = {{64_KiB, 512}, {128_KiB, 64_KiB}};
  const auto begin = std::chrono::steady_clock::now();
  const Layout layout = lay_out(blocks, occupied);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << "the squares would take minutes";
  expect_apart_in_time(blocks, layout, occupied);
  EXPECT_LE(static_cast<double>(layout.bytes), 1.1 * static_cast<double>(highest(blocks)));
}

}  // namespace
}  // namespace snug::plan
