#include "snug/plan/budget.h"

#include <gtest/gtest.h>

namespace snug::plan {
namespace {

TEST(Budget, ReservesAThirtySecondOfALimitWithinBounds) {
  EXPECT_EQ(Budget::for_limit(100).reserve, 50);
  EXPECT_EQ(Budget::for_limit(1_MiB).reserve, 256_KiB);
  EXPECT_EQ(Budget::for_limit(32_MiB).reserve, 1_MiB);
  EXPECT_EQ(Budget::for_limit(32_MiB).for_blocks(), 31_MiB);
  EXPECT_EQ(Budget::for_limit(64_MiB).reserve, 2_MiB);
  EXPECT_EQ(Budget::for_limit(8_GiB).reserve, 2_MiB);
}

TEST(Budget, NamesTheSmallestLimitThatHoldsAPeak) {
  for (const Bytes peak :
       {Bytes{1}, Bytes{31}, Bytes{32}, Bytes{4096}, 1_MiB, 61_MiB, 62_MiB - 1, 62_MiB, 62_MiB + 1, 5_GiB}) {
    SCOPED_TRACE(peak);
    const Bytes floor = Budget::for_limit(100).floor_for(peak);
    EXPECT_GE(Budget::for_limit(floor).for_blocks(), peak);
    EXPECT_LT(Budget::for_limit(floor - 1).for_blocks(), peak);
  }
}

TEST(Budget, KeepsAReserveThatSomebodyChose) {
  EXPECT_EQ((Budget{1_GiB, 10_MiB}.floor_for(100_MiB)), 110_MiB);
  EXPECT_EQ((Budget{1_GiB, 0}.floor_for(100_MiB)), 100_MiB);
}

TEST(Budget, HoldsAShareOfAPeakAndAllOfItHoweverSmall) {
  for (const Bytes peak : {Bytes{64}, Bytes{52'352}, 1_MiB, 300_MiB}) {
    SCOPED_TRACE(peak);
    EXPECT_GE(Budget::for_share(1, peak).for_blocks(), peak);
    EXPECT_GE(Budget::for_share(0.5, peak).for_blocks(), peak / 2);
    EXPECT_LT(Budget::for_limit(Budget::for_share(0.5, peak).limit - 1).for_blocks(), peak / 2);
  }
}

}  // namespace
}  // namespace snug::plan
