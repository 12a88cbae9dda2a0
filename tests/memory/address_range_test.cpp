#include "snug/memory/address_range.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "snug/base/errors.h"
#include "tests/memory/address_limit.h"
#include "tests/memory/resident_pages.h"

namespace snug::memory {
namespace {

using testing_support::AddressLimit;
using testing_support::kPage;
using testing_support::resident_bytes;
using testing_support::touch;

TEST(AddressRange, HoldsNoPagesUntilTheyAreTouched) {
  AddressRange range;
  EXPECT_GE(range.size(), Bytes{1} << 33);
  EXPECT_EQ(resident_bytes(range.base(), 64 * kPage), 0);
  touch(range.base(), 8 * kPage);
  EXPECT_EQ(resident_bytes(range.base(), 64 * kPage), 8 * kPage);
  range.release(2 * kPage, 4 * kPage);
  EXPECT_EQ(resident_bytes(range.base(), 64 * kPage), 4 * kPage);
}

TEST(AddressRange, ReservesWhatALimitOnAddressesLeavesAndAtLeastEightGiB) {
  {
    const AddressLimit limit(9_GiB);
    AddressRange range;
    EXPECT_EQ(range.size(), 8_GiB);
    touch(range.base() + range.size() - kPage, kPage);
  }
  const AddressLimit limit(7_GiB);
  EXPECT_THROW(AddressRange(), Error);
}

/// Of the area that this address is in, from /proc/self/smaps.
std::string flags_of(const std::byte* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream areas("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(areas, line);) {
    char* end = nullptr;
    const std::uintptr_t first = std::strtoull(line.c_str(), &end, 16);
    if (*end == '-') inside = first <= wanted && wanted < std::strtoull(end + 1, nullptr, 16);
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return {};
}

TEST(AddressRange, HasNoHugePagesWhichWouldMakeMoreResidentThanIsMapped) {
  AddressRange range;
  EXPECT_NE(flags_of(range.base()).find(" nh "), std::string::npos) << flags_of(range.base());
}

TEST(AddressRange, MovesPagesInsteadOfFaultingNewOnesIn) {
  AddressRange range;
  std::byte* from = range.base() + 32 * kPage;
  std::byte* to = range.base() + 1024 * kPage;
  touch(from, 16 * kPage);
  EXPECT_EQ(range.move(32 * kPage, 16 * kPage, 1024 * kPage), 16 * kPage);
  EXPECT_EQ(resident_bytes(from, 16 * kPage), 0);
  EXPECT_EQ(resident_bytes(to, 16 * kPage), 16 * kPage);
  // The very same pages: they hold what was written through the other address.
  EXPECT_EQ(static_cast<int>(to[15 * kPage]), 0x5a);
  // The source's addresses can be used again.
  touch(from, 16 * kPage);
  EXPECT_EQ(resident_bytes(from, 16 * kPage), 16 * kPage);
}

TEST(AddressRange, ReleasesWhatIsTooShortToMove) {
  AddressRange range;
  touch(range.base(), 2 * kPage);
  EXPECT_EQ(range.move(0, 2 * kPage, 512 * kPage), 0);
  EXPECT_EQ(resident_bytes(range.base(), 2 * kPage), 0);
  EXPECT_EQ(resident_bytes(range.base() + 512 * kPage, 2 * kPage), 0);
  EXPECT_EQ(range.seams(), 0U);
}

TEST(AddressRange, MovesAcrossTheSeamsOfEarlierMoves) {
  AddressRange range;
  touch(range.base(), 24 * kPage);
  // Two pieces that were far apart come to lie side by side, and then move on together.
  EXPECT_EQ(range.move(0, 8 * kPage, 100 * kPage), 8 * kPage);
  EXPECT_EQ(range.move(16 * kPage, 8 * kPage, 108 * kPage), 8 * kPage);
  EXPECT_EQ(range.move(100 * kPage, 16 * kPage, 300 * kPage), 16 * kPage);
  EXPECT_EQ(resident_bytes(range.base() + 300 * kPage, 16 * kPage), 16 * kPage);
  EXPECT_EQ(resident_bytes(range.base(), 120 * kPage), 8 * kPage);
}

TEST(AddressRange, SeamsDoNotGrowWithTheNumberOfMoves) {
  AddressRange range;
  std::mt19937 random(7);
  constexpr Bytes kSpan = 256;
  for (int i = 0; i < 4000; ++i) {
    const Bytes length = 4 + static_cast<Bytes>(random() % 40);
    const Bytes from = static_cast<Bytes>(random()) % (kSpan - length);
    const Bytes to = kSpan + static_cast<Bytes>(random()) % (kSpan - length);
    touch(range.base() + from * kPage, length * kPage);
    range.release(to * kPage, length * kPage);
    range.move(from * kPage, length * kPage, to * kPage);
    EXPECT_EQ(resident_bytes(range.base() + from * kPage, length * kPage), 0);
    touch(range.base() + to * kPage, length * kPage);
  }
  // What is too short to move is released, which joins it with what is around it.
  EXPECT_LE(range.seams(), static_cast<std::size_t>(kSpan / 2));
  range.release(0, 2 * kSpan * kPage);
  EXPECT_EQ(resident_bytes(range.base(), 2 * kSpan * kPage), 0);
  EXPECT_LE(range.seams(), 2U);
}

}  // namespace
}  // namespace snug::memory
