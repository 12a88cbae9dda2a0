#include "snug/memory/small_heap.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace snug::memory {
namespace {

constexpr Bytes kGranule = SmallHeap::kGranule;
constexpr Bytes kSegment = SmallHeap::kSegment;

TEST(SmallHeap, ServesManyBlocksFromOneSegment) {
  PageHeap pages;
  SmallHeap heap(pages);
  std::byte* a = heap.take(64);
  std::byte* b = heap.take(128);
  EXPECT_EQ(b, a + 64);
  EXPECT_EQ(pages.taken(), kSegment);
  heap.give(a, 64);
  EXPECT_EQ(heap.take(64), a);
  EXPECT_EQ(pages.taken(), kSegment);
}

TEST(SmallHeap, OpensASegmentWhenNoneHasRoom) {
  PageHeap pages;
  SmallHeap heap(pages);
  heap.take(kSegment / 2);
  heap.take(kSegment / 2 - 2 * kGranule);
  EXPECT_EQ(pages.taken(), kSegment);
  heap.take(kGranule);
  EXPECT_EQ(pages.taken(), kSegment);
  heap.take(kGranule);
  EXPECT_EQ(pages.taken(), 2 * kSegment);
}

TEST(SmallHeap, TakesWhatItKeepsApartBeforeItOpensASegment) {
  PageHeap pages;
  SmallHeap heap(pages);
  std::vector<std::pair<std::byte*, Bytes>> blocks;
  for (Bytes length = kGranule, all = 0; all + length < kSegment; all += length, length += kGranule)
    blocks.emplace_back(heap.take(length), length);
  for (const auto& [block, length] : blocks) heap.give(block, length);
  for (const auto& [block, length] : blocks) EXPECT_EQ(heap.take(length), block) << "the one that went last";
  for (const auto& [block, length] : blocks) heap.give(block, length);
  // Together they have room for what none of them has.
  EXPECT_NE(heap.take(kSegment / 2), nullptr);
  EXPECT_NE(heap.take(kSegment / 2 - kGranule), nullptr);
  EXPECT_EQ(pages.taken(), kSegment);
}

TEST(SmallHeap, NeverServesABlockAcrossNeighbouringSegments) {
  PageHeap pages;
  SmallHeap heap(pages);
  std::byte* a = heap.take(kSegment / 2);
  heap.take(kSegment / 2 - kGranule);
  std::byte* c = heap.take(kSegment / 2);
  ASSERT_EQ(c, a + kSegment);
  heap.give(a + kSegment / 2, kSegment / 2 - kGranule);
  heap.give(c, kSegment / 2);
  heap.give(a, kSegment / 2);
  // Both are empty: they go back one by one.
  heap.release_empty();
  EXPECT_EQ(pages.taken(), 0);
}

TEST(SmallHeap, GivesBackOnlySegmentsWithoutABlock) {
  PageHeap pages;
  SmallHeap heap(pages);
  std::byte* a = heap.take(kSegment / 2);
  std::byte* b = heap.take(kSegment / 2);
  EXPECT_EQ(pages.taken(), 2 * kSegment);
  heap.release_empty();
  EXPECT_EQ(pages.taken(), 2 * kSegment);
  heap.give(a, kSegment / 2);
  heap.release_empty();
  EXPECT_EQ(pages.taken(), kSegment);
  heap.give(b, kSegment / 2);
  heap.release_empty();
  EXPECT_EQ(pages.taken(), 0);
  EXPECT_NE(heap.take(kGranule), nullptr);
}

TEST(SmallHeap, IsRefusedWhatThePagesRefuse) {
  PageHeap pages;
  pages.set_limit(kSegment);
  SmallHeap heap(pages);
  ASSERT_NE(heap.take(kSegment / 2), nullptr);
  EXPECT_EQ(heap.take(kSegment / 2), nullptr);
  EXPECT_NE(heap.take(kSegment / 2 - kGranule), nullptr);
}

TEST(SmallHeap, ServesAlignedBlocksThatDoNotOverlapInRandomUse) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 engine(seed);
    const auto roll = [&](Bytes sides) { return static_cast<Bytes>(engine() % static_cast<std::uint64_t>(sides)); };
    PageHeap pages;
    SmallHeap heap(pages);
    std::map<std::byte*, Bytes> live;
    Bytes most = 0;
    for (int i = 0; i < 3000; ++i) {
      if (roll(100) < 52) {
        const Bytes length = (1 + roll(roll(3) == 0 ? 512 : 16)) * kGranule;
        std::byte* address = heap.take(length);
        ASSERT_NE(address, nullptr);
        ASSERT_EQ(reinterpret_cast<std::uintptr_t>(address) % 64, 0U);
        const auto next = live.lower_bound(address);
        ASSERT_TRUE(next == live.end() || address + length <= next->first);
        ASSERT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= address);
        live.emplace(address, length);
      } else if (!live.empty()) {
        const auto victim = std::next(live.begin(), roll(static_cast<Bytes>(live.size())));
        heap.give(victim->first, victim->second);
        live.erase(victim);
      }
      if (roll(200) == 0) heap.release_empty();
      most = std::max(most, pages.taken());
    }
    EXPECT_GT(most, 2 * kSegment);
    for (const auto& [address, length] : live) heap.give(address, length);
    heap.release_empty();
    ASSERT_EQ(pages.taken(), 0);
  }
}

}  // namespace
}  // namespace snug::memory
