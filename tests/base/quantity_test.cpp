#include "snug/base/quantity.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <utility>

namespace snug {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 2> kTimes = {{{"s", 1}, {"ms", 1e-3}}};

TEST(Quantity, IsANumberTimesItsUnit) {
  EXPECT_EQ(read_quantity("3s", kTimes), 3);
  EXPECT_EQ(read_quantity("2.5 ms", kTimes), 2.5e-3);
  EXPECT_EQ(read_quantity("0s", kTimes), 0);
  for (const char* const text : {"", "s", "3", "3S", "-1s", "infs", "nans", "3 s ", "3us", " 3s"})
    EXPECT_EQ(read_quantity(text, kTimes), std::nullopt) << text;
}

TEST(Rate, IsInBytesOrInBits) {
  EXPECT_EQ(read_rate("400Gbps"), 50e9);
  EXPECT_EQ(read_rate("2.5TBps"), 2.5e12);
  EXPECT_EQ(read_rate("1GiB/s"), 1073741824);
  EXPECT_EQ(read_rate("8bps"), 1);
  for (const char* const text : {"", "bps", "1GB", "1gbps/", "1GBPS", "-1GBps", "GBps", "1gBps"})
    EXPECT_EQ(read_rate(text), std::nullopt) << text;
}

}  // namespace
}  // namespace snug
