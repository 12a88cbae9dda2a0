#include "snug/report/count.h"

#include <gtest/gtest.h>

namespace snug::report {
namespace {

TEST(FormatCount, TakesTheLargestUnitThatLeavesOne) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1.00 K");
  EXPECT_EQ(format_count(44'380), "44.4 K");
  EXPECT_EQ(format_count(4'884'480), "4.88 M");
  EXPECT_EQ(format_count(139'400'000), "139.4 M");
  EXPECT_EQ(format_count(8'030'261'248), "8.03 G");
}

TEST(FormatShare, StandsBehindAnAmount) {
  EXPECT_EQ(format_share(1, 3), " (33 %)");
  EXPECT_EQ(format_share(1, 3, 1), " (33.3 %)");
  EXPECT_EQ(format_share(5, 0), "");
}

}  // namespace
}  // namespace snug::report
