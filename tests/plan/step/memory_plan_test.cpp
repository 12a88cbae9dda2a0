#include "snug/plan/step/memory_plan.h"

#include <gtest/gtest.h>

#include <sstream>

namespace snug::plan {
namespace {

TEST(MemoryPlan, IsPrintedAsOneLine) {
  MemoryPlan plan;
  plan.strategy = "optimal";
  plan.predicted_peak = Bytes{3} << 20;
  plan.unplanned_peak = Bytes{8} << 20;
  plan.predicted_seconds = 0.25;
  plan.unplanned_seconds = 0.2;
  std::ostringstream without, within;
  without << plan;
  EXPECT_EQ(without.str(), "optimal: peak 3.0 MiB of 8.0 MiB, step 0.250 s of 0.200 s");
  plan.budget = Bytes{4} << 20;
  within << plan;
  EXPECT_EQ(within.str(), "optimal: peak 3.0 MiB of 8.0 MiB, step 0.250 s of 0.200 s, budget 4.0 MiB");
}

}  // namespace
}  // namespace snug::plan
