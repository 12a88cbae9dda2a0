#include "snug/plan/search/descent.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/search/lowest_peak.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

constexpr std::size_t kPieces = 48;

class DescendingPlans : public ::testing::Test {
 protected:
  const StepGraph graph = synthetic::residual_net();
  const std::vector<MemoryPlan> front = front_of(all_presets(graph));
};

TEST_F(DescendingPlans, HaveExactPredictions) {
  const auto plans = descending_plans(graph, front, kPieces, {2'000'000});
  ASSERT_FALSE(plans.empty());
  for (const MemoryPlan& plan : plans) {
    const Simulation run = simulate(graph, plan);
    EXPECT_EQ(run.peak, plan.predicted_peak);
    EXPECT_EQ(run.seconds, plan.predicted_seconds);
  }
}

TEST_F(DescendingPlans, LeaveLittleOfWhatPresetsAreAboveTheBound) {
  auto plans = descending_plans(graph, front, kPieces, {2'000'000});
  std::ranges::copy(front, std::back_inserter(plans));
  plans = front_of(std::move(plans));
  // Halfway down, at the least.
  const Bytes half = (front.front().predicted_peak + front.back().predicted_peak) / 2;
  EXPECT_LT(gap_at(graph, plans, half), 0.5 * gap_at(graph, front, half));
}

TEST_F(DescendingPlans, StopWhenTheEffortIsSpent) {
  const auto few = descending_plans(graph, front, kPieces, {20'000});
  EXPECT_LT(few.size(), descending_plans(graph, front, kPieces, {2'000'000}).size());
}

TEST_F(DescendingPlans, DependOnNothingButTheGraph) {
  const auto plans = descending_plans(graph, front, kPieces, {500'000});
  EXPECT_EQ(plans, descending_plans(graph, front, kPieces, {500'000}));
}

TEST(DescendingPlansOfAChain, AreNotMadeWhereTheFrontIsAtTheBound) {
  synthetic::GraphBuilder b;
  const ValueId x = b.op("a", {b.leaf()}, 1_MiB, 1);
  b.save(x);
  b.die(x);
  b.settle();
  b.node({x}, 0);
  b.graph().step_seconds = 3;
  const StepGraph graph = b.take();
  const std::vector<MemoryPlan> front = front_of(all_presets(graph));
  EXPECT_TRUE(descending_plans(graph, front, kPieces, {100'000}).empty());
}

}  // namespace
}  // namespace snug::plan
