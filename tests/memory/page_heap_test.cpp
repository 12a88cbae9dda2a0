#include "snug/memory/page_heap.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "tests/memory/address_limit.h"
#include "tests/memory/resident_pages.h"

namespace {
int g_moves_that_succeed = 0;  // whatever limits addresses
}

/// In place of the C library's, for all of this program.
extern "C" void* mremap(void* from, std::size_t length, std::size_t new_length, int flags, ...) noexcept {
  std::va_list arguments;
  va_start(arguments, flags);
  void* const to = (flags & MREMAP_FIXED) != 0 ? va_arg(arguments, void*) : nullptr;
  va_end(arguments);
  rlimit before{};
  const bool succeeds = g_moves_that_succeed > 0;
  if (succeeds) {
    --g_moves_that_succeed;
    ::getrlimit(RLIMIT_AS, &before);
    const rlimit none{.rlim_cur = before.rlim_max, .rlim_max = before.rlim_max};
    ::setrlimit(RLIMIT_AS, &none);
  }
  const long moved = ::syscall(SYS_mremap, from, length, new_length, flags, to);
  if (succeeds) ::setrlimit(RLIMIT_AS, &before);
  return reinterpret_cast<void*>(moved);
}

namespace snug::memory {
namespace {

using testing_support::AddressLimit;
using testing_support::kPage;
using testing_support::resident_bytes;
using testing_support::touch;

TEST(PageHeap, TakesAlignedPagesAndCountsThem) {
  PageHeap heap;
  std::byte* a = heap.take(3 * kPage);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % static_cast<std::uintptr_t>(kPage), 0U);
  touch(a, 3 * kPage);
  EXPECT_EQ(heap.taken(), 3 * kPage);
  EXPECT_EQ(heap.mapped(), 3 * kPage);
  EXPECT_EQ(resident_bytes(a, 3 * kPage), 3 * kPage);
}

TEST(PageHeap, KeepsGivenPagesMappedAndTakesThemFirst) {
  PageHeap heap;
  std::byte* a = heap.take(4 * kPage);
  heap.take(kPage);
  touch(a, 4 * kPage);
  heap.give(a, 4 * kPage);
  EXPECT_EQ(heap.taken(), kPage);
  EXPECT_EQ(heap.mapped(), 5 * kPage);
  EXPECT_EQ(resident_bytes(a, 4 * kPage), 4 * kPage);
  EXPECT_EQ(heap.take(4 * kPage), a);
  EXPECT_EQ(heap.mapped(), 5 * kPage);
}

TEST(PageHeap, SplitsACachedRangeForASmallerRequest) {
  PageHeap heap;
  std::byte* a = heap.take(4 * kPage);
  heap.give(a, 4 * kPage);
  EXPECT_EQ(heap.take(kPage), a);
  EXPECT_EQ(heap.take(3 * kPage), a + kPage);
  EXPECT_EQ(heap.mapped(), 4 * kPage);
}

TEST(PageHeap, ExtendsACachedRangeInsteadOfMappingAllAnew) {
  PageHeap heap;
  std::byte* a = heap.take(4 * kPage);
  touch(a, 4 * kPage);
  heap.give(a, 4 * kPage);
  EXPECT_EQ(heap.take(6 * kPage), a);
  EXPECT_EQ(heap.mapped(), 6 * kPage);
}

TEST(PageHeap, ExtendsACachedRangeToItsFront) {
  PageHeap heap;
  std::byte* a = heap.take(2 * kPage);
  std::byte* b = heap.take(2 * kPage);
  heap.take(kPage);
  ASSERT_EQ(b, a + 2 * kPage);
  heap.give(a, 2 * kPage);
  heap.release_cached();
  heap.give(b, 2 * kPage);
  EXPECT_EQ(heap.mapped(), 3 * kPage);
  EXPECT_EQ(heap.take(3 * kPage), a + kPage);
  EXPECT_EQ(heap.mapped(), 4 * kPage);
}

TEST(PageHeap, ReleasesCachedPagesToTheSystemAndOnlyThose) {
  PageHeap heap;
  std::byte* a = heap.take(64 * kPage);
  std::byte* b = heap.take(kPage);
  touch(a, 64 * kPage);
  touch(b, kPage);
  heap.give(a, 64 * kPage);
  EXPECT_EQ(resident_bytes(a, 64 * kPage), 64 * kPage);
  heap.release_cached();
  EXPECT_EQ(resident_bytes(a, 64 * kPage), 0);
  EXPECT_EQ(resident_bytes(b, kPage), kPage);
  EXPECT_EQ(heap.mapped(), kPage);
  EXPECT_EQ(static_cast<int>(*b), 0x5a);
}

TEST(PageHeap, RefusesToPassTheLimit) {
  PageHeap heap;
  heap.set_limit(4 * kPage);
  std::byte* a = heap.take(4 * kPage);
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(heap.take(kPage), nullptr);
  EXPECT_EQ(heap.taken(), 4 * kPage);
  heap.give(a, 4 * kPage);
  EXPECT_EQ(heap.take(5 * kPage), nullptr);
  EXPECT_EQ(heap.take(4 * kPage), a);
  heap.set_limit(std::nullopt);
  EXPECT_NE(heap.take(100 * kPage), nullptr);
}

TEST(PageHeap, MovesScatteredPagesTogetherWhenTheLimitCallsForIt) {
  PageHeap heap;
  std::byte* a = heap.take(4 * kPage);
  std::byte* wall = heap.take(kPage);
  std::byte* b = heap.take(2 * kPage);
  heap.take(kPage);
  touch(a, 4 * kPage);
  touch(b, 2 * kPage);
  heap.set_limit(8 * kPage);
  heap.give(a, 4 * kPage);
  heap.give(b, 2 * kPage);
  ASSERT_EQ(heap.mapped(), 8 * kPage);
  // No cached range holds 6 and none can grow in place: all of them make room.
  std::byte* c = heap.take(6 * kPage);
  ASSERT_NE(c, nullptr);
  // The four of a became pages of c, without a fault; two are too few to be worth a move.
  EXPECT_EQ(heap.moved(), 4 * kPage);
  EXPECT_EQ(resident_bytes(c, 6 * kPage), 4 * kPage);
  EXPECT_EQ(heap.mapped(), 8 * kPage);
  EXPECT_EQ(heap.taken(), 8 * kPage);
  EXPECT_EQ(resident_bytes(a, 4 * kPage) + resident_bytes(b, 2 * kPage), 0);
  EXPECT_NE(wall, nullptr);
}

TEST(PageHeap, ReturnsGivenPagesWhileItIsOverALimitThatWasSetLater) {
  PageHeap heap;
  std::byte* a = heap.take(8 * kPage);
  std::byte* b = heap.take(4 * kPage);
  touch(a, 8 * kPage);
  heap.set_limit(6 * kPage);
  EXPECT_EQ(heap.take(kPage), nullptr);
  heap.give(a, 8 * kPage);
  EXPECT_EQ(heap.mapped(), 6 * kPage);
  EXPECT_EQ(resident_bytes(a, 8 * kPage), 2 * kPage);
  EXPECT_NE(heap.take(2 * kPage), nullptr);
  EXPECT_EQ(heap.take(kPage), nullptr);
  EXPECT_LE(heap.mapped(), 6 * kPage);
  EXPECT_NE(b, nullptr);
}

TEST(PageHeap, ReturnsWhatIsOverALimitThatWasSetLaterWhereMovedPagesAreNotEnough) {
  PageHeap heap;
  std::byte* a = heap.take(4 * kPage);
  heap.take(kPage);
  std::byte* b = heap.take(4 * kPage);
  heap.take(kPage);
  touch(a, 4 * kPage);
  touch(b, 4 * kPage);
  heap.give(a, 4 * kPage);
  heap.give(b, 4 * kPage);
  heap.set_limit(8 * kPage);
  // Seven pages must go, of which the new range has room for five.
  std::byte* c = heap.take(5 * kPage);
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(heap.mapped(), 8 * kPage);
  EXPECT_EQ(heap.moved(), 4 * kPage);
  EXPECT_EQ(resident_bytes(c, 5 * kPage), 4 * kPage);
  EXPECT_EQ(resident_bytes(a, 4 * kPage) + resident_bytes(b, 4 * kPage), kPage);
}

TEST(PageHeap, ARefusalOfTheSystemLosesNoPages) {
  PageHeap heap;
  std::byte* a = heap.take(4 * kPage);
  heap.take(kPage);
  std::byte* b = heap.take(4 * kPage);
  touch(a, 4 * kPage);
  touch(b, 4 * kPage);
  heap.set_limit(9 * kPage);
  heap.give(a, 4 * kPage);
  heap.give(b, 4 * kPage);
  {
    const AddressLimit none(-kPage);
    EXPECT_THROW(heap.take(8 * kPage), Error) << "the pages of a move behind b, for which there must be addresses";
  }
  EXPECT_EQ(heap.taken(), kPage);
  EXPECT_EQ(heap.mapped(), 5 * kPage) << "those of b are there";
  EXPECT_EQ(resident_bytes(a, 4 * kPage), 0);
  EXPECT_EQ(heap.take(4 * kPage), b);
  EXPECT_EQ(resident_bytes(b, 4 * kPage), 4 * kPage);
  EXPECT_NE(heap.take(4 * kPage), nullptr);
}

TEST(PageHeap, ARefusalOfALaterMoveLosesNoPagesEither) {
  PageHeap heap;
  std::vector<std::byte*> scattered;
  for (int i = 0; i < 3; ++i) {
    scattered.push_back(heap.take(4 * kPage));
    heap.take(kPage);
    touch(scattered.back(), 4 * kPage);
  }
  heap.set_limit(15 * kPage);
  for (std::byte* const one : scattered) heap.give(one, 4 * kPage);
  std::byte* const behind = scattered.back() + 5 * kPage;
  {
    const AddressLimit none(-kPage);
    g_moves_that_succeed = 1;
    EXPECT_THROW(heap.take(12 * kPage), Error);
    EXPECT_EQ(std::exchange(g_moves_that_succeed, 0), 0) << "the first range was moved";
  }
  EXPECT_EQ(heap.taken(), 3 * kPage);
  Bytes resident = 0;
  for (Bytes page = 0; page < 8 * kPage; page += kPage)  // the addresses of some are lost
    resident += std::max<Bytes>(resident_bytes(behind + page, kPage), 0);
  for (std::byte* const one : scattered) resident += resident_bytes(one, 4 * kPage);
  EXPECT_EQ(heap.mapped() - heap.taken(), resident) << "pages that nobody counts";
  // What was left is used again, up to the limit.
  Bytes more = 0;
  while (heap.take(kPage) != nullptr) more += kPage;
  EXPECT_EQ(more, 12 * kPage);
}

TEST(PageHeap, RefusesWhatNoAddressesAreLeftFor) {
  PageHeap heap;
  EXPECT_EQ(heap.take(Bytes{1} << 43), nullptr);
  EXPECT_EQ(heap.taken(), 0);
  EXPECT_NE(heap.take(kPage), nullptr);
}

TEST(PageHeap, NeverPassesTheLimitNorRefusesWhatFitsNorOverlapsInRandomUse) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937_64 engine(seed);
    const auto roll = [&](Bytes sides) { return static_cast<Bytes>(engine() % static_cast<std::uint64_t>(sides)); };
    constexpr Bytes kLimit = 200 * kPage;
    PageHeap heap;
    heap.set_limit(kLimit);
    std::map<std::byte*, Bytes> live;
    const auto stamp = [](std::byte* address, Bytes length) {
      for (Bytes page = 0; page < length; page += kPage) std::memcpy(address + page, &address, sizeof address);
    };
    const auto stamped = [](std::byte* address, Bytes length) {
      for (Bytes page = 0; page < length; page += kPage) {
        if (std::memcmp(address + page, &address, sizeof address) != 0) return false;
      }
      return true;
    };
    std::byte* lowest = nullptr;
    Bytes taken = 0;
    int refused = 0;
    for (int i = 0; i < 2000; ++i) {
      const Bytes length = (1 + roll(roll(4) == 0 ? 120 : 12)) * kPage;
      if (roll(100) < 55) {
        std::byte* address = heap.take(length);
        ASSERT_EQ(address != nullptr, taken + length <= kLimit);
        if (address == nullptr) {
          ++refused;
        } else {
          const auto next = live.lower_bound(address);
          ASSERT_TRUE(next == live.end() || address + length <= next->first);
          ASSERT_TRUE(next == live.begin() || std::prev(next)->first + std::prev(next)->second <= address);
          live.emplace(address, length);
          stamp(address, length);
          taken += length;
          if (lowest == nullptr || address < lowest) lowest = address;
        }
      } else if (!live.empty()) {
        const auto victim = std::next(live.begin(), roll(static_cast<Bytes>(live.size())));
        // Nothing that is taken was moved.
        ASSERT_TRUE(stamped(victim->first, victim->second));
        heap.give(victim->first, victim->second);
        taken -= victim->second;
        live.erase(victim);
      }
      if (roll(100) == 0) heap.release_cached();
      ASSERT_EQ(heap.taken(), taken);
      ASSERT_LE(heap.mapped(), kLimit);
      ASSERT_GE(heap.mapped(), taken);
      // What the system holds for all of it is no more than what is counted.
      if (i % 100 == 0 && lowest != nullptr) {
        ASSERT_LE(resident_bytes(lowest, 4 * kLimit), heap.mapped());
      }
    }
    EXPECT_GT(refused, 10);
    EXPECT_GT(heap.moved(), 100 * kPage);
  }
}

TEST(PageHeap, StaysOnPageBoundariesUnderALimitThatIsNoWholeNumberOfPages) {
  PageHeap heap;
  heap.set_limit(40 * PageHeap::kPage + 1234);
  const auto aligned = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % PageHeap::kPage == 0; };
  std::byte* a = heap.take(20 * PageHeap::kPage);
  std::byte* b = heap.take(20 * PageHeap::kPage);
  heap.give(a, 20 * PageHeap::kPage);
  std::byte* c = heap.take(21 * PageHeap::kPage);  // does not fit: 41 pages
  EXPECT_EQ(c, nullptr);
  heap.give(b, 20 * PageHeap::kPage);
  for (int pages = 1; pages <= 40; ++pages) {
    std::byte* p = heap.take(pages * PageHeap::kPage);
    std::byte* q = pages < 40 ? heap.take(PageHeap::kPage) : nullptr;
    EXPECT_TRUE(p != nullptr && aligned(p) && aligned(q)) << pages;
    EXPECT_EQ(heap.mapped() % PageHeap::kPage, 0);
    heap.give(p, pages * PageHeap::kPage);
    if (q != nullptr) heap.give(q, PageHeap::kPage);
  }
}

}  // namespace
}  // namespace snug::memory
