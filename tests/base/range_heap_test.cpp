#include "snug/base/range_heap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace snug {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

RangeHeap heap_of(const std::vector<std::pair<Bytes, Bytes>>& ranges) {
  RangeHeap heap;
  for (const auto& [offset, length] : ranges) heap.give(offset, length);
  return heap;
}

TEST(RangeHeap, TakesTheSmallestRangeThatFitsAndTheLowestOfEquals) {
  RangeHeap heap = heap_of({{0, 100}, {200, 30}, {300, 20}, {400, 20}});
  EXPECT_EQ(heap.take(15), 300);
  EXPECT_EQ(heap.take(20), 400);
  EXPECT_EQ(heap.take(25), 200);
  EXPECT_EQ(heap.take(101), std::nullopt);
  EXPECT_THAT(heap.ranges(), ElementsAre(Pair(0, 100), Pair(225, 5), Pair(315, 5)));
  EXPECT_EQ(heap.total(), 110);
}

TEST(RangeHeap, MergesAGivenRangeWithBothNeighbours) {
  RangeHeap heap = heap_of({{0, 10}, {20, 10}});
  EXPECT_EQ(heap.give(40, 5), (std::pair<Bytes, Bytes>{40, 5}));
  EXPECT_EQ(heap.give(10, 10), (std::pair<Bytes, Bytes>{0, 30}));
  EXPECT_EQ(heap.give(30, 10), (std::pair<Bytes, Bytes>{0, 45}));
  EXPECT_THAT(heap.ranges(), ElementsAre(Pair(0, 45)));
}

TEST(RangeHeap, TakesAPartOutOfTheMiddle) {
  RangeHeap heap = heap_of({{100, 100}});
  heap.take_at(120, 30);
  EXPECT_THAT(heap.ranges(), ElementsAre(Pair(100, 20), Pair(150, 50)));
  heap.take_at(100, 20);
  heap.take_at(150, 50);
  EXPECT_TRUE(heap.ranges().empty());
  EXPECT_EQ(heap.total(), 0);
}

TEST(RangeHeap, FindsTheLongestAndTheNeighboursOfAnAddress) {
  const RangeHeap heap = heap_of({{0, 10}, {100, 50}, {200, 50}});
  EXPECT_EQ(heap.longest(), (std::pair<Bytes, Bytes>{200, 50}));
  EXPECT_EQ(heap.starting_at(100), (std::pair<Bytes, Bytes>{100, 50}));
  EXPECT_EQ(heap.starting_at(101), std::nullopt);
  EXPECT_EQ(heap.ending_at(150), (std::pair<Bytes, Bytes>{100, 50}));
  EXPECT_EQ(heap.ending_at(149), std::nullopt);
  EXPECT_EQ(heap.ending_at(0), std::nullopt);
  EXPECT_EQ(RangeHeap().longest(), std::nullopt);
  EXPECT_EQ(RangeHeap().ending_at(5), std::nullopt);
}

/// One flag a byte.
class NaiveHeap {
 public:
  explicit NaiveHeap(std::size_t size) : free_(size, false) {}
  std::map<Bytes, Bytes> ranges() const {
    std::map<Bytes, Bytes> all;
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (!free_[i]) continue;
      if (i > 0 && free_[i - 1]) {
        ++std::prev(all.end())->second;
      } else {
        all.emplace(static_cast<Bytes>(i), 1);
      }
    }
    return all;
  }
  std::optional<Bytes> best(Bytes length) const {
    std::optional<std::pair<Bytes, Bytes>> found;
    for (const auto& [offset, size] : ranges()) {
      if (size >= length && (!found || size < found->first)) found = {size, offset};
    }
    return found ? std::optional(found->second) : std::nullopt;
  }
  void set(Bytes offset, Bytes length, bool free) {
    for (Bytes i = offset; i < offset + length; ++i) free_[static_cast<std::size_t>(i)] = free;
  }
  bool is_taken(Bytes offset, Bytes length) const {
    for (Bytes i = offset; i < offset + length; ++i) {
      if (free_[static_cast<std::size_t>(i)]) return false;
    }
    return true;
  }

 private:
  std::vector<bool> free_;
};

TEST(RangeHeap, AgreesWithANaiveModel) {
  constexpr Bytes kSize = 400;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 engine(seed);
    const auto roll = [&](Bytes sides) { return static_cast<Bytes>(engine() % static_cast<std::uint64_t>(sides)); };
    RangeHeap heap;
    NaiveHeap naive(kSize);
    int taken = 0, given = 0;
    for (int i = 0; i < 1000; ++i) {
      const Bytes length = 1 + roll(30);
      if (roll(2) == 0) {
        const auto expected = naive.best(length);
        ASSERT_EQ(heap.take(length), expected);
        if (expected) naive.set(*expected, length, false), ++taken;
      } else if (const Bytes offset = roll(kSize - length); naive.is_taken(offset, length)) {
        naive.set(offset, length, true);
        const auto [start, size] = heap.give(offset, length);
        ASSERT_EQ(naive.ranges().at(start), size);
        ++given;
      }
      ASSERT_EQ(heap.ranges(), naive.ranges());
      Bytes total = 0, longest = 0;
      for (const auto& [offset, size] : heap.ranges()) total += size, longest = std::max(longest, size);
      ASSERT_EQ(heap.total(), total);
      if (total > 0) {
        ASSERT_EQ(heap.longest()->second, longest);
      }
    }
    EXPECT_GT(taken, 100);
    EXPECT_GT(given, 50);
  }
}

}  // namespace
}  // namespace snug
