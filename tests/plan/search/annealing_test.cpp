#include "snug/plan/search/annealing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/search/hidden_copies.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

class Annealed : public ::testing::Test {
 protected:
  const StepGraph graph = synthetic::residual_net();
  const std::vector<MemoryPlan> before = front_of(all_presets(graph));
};

TEST_F(Annealed, IsAFrontWithExactPredictionsAndNowhereWorse) {
  const auto after = with_annealing(graph, before, {400'000});
  for (std::size_t i = 0; i < after.size(); ++i) {
    const Simulation run = simulate(graph, after[i]);
    EXPECT_EQ(run.peak, after[i].predicted_peak);
    EXPECT_EQ(run.seconds, after[i].predicted_seconds);
    if (i == 0) continue;
    EXPECT_LT(after[i].predicted_peak, after[i - 1].predicted_peak);
    EXPECT_GT(after[i].predicted_seconds, after[i - 1].predicted_seconds);
  }
  for (const MemoryPlan& old : before) {
    const auto fits =
        std::ranges::find_if(after, [&](const MemoryPlan& plan) { return plan.predicted_peak <= old.predicted_peak; });
    ASSERT_NE(fits, after.end());
    EXPECT_LE(fits->predicted_seconds, old.predicted_seconds);
  }
}

TEST_F(Annealed, FindsPlansThatNoPresetIs) {
  const auto after = with_annealing(graph, before, {400'000});
  // At the lowest peak that a preset reaches, a good part of its extra time is saved.
  const double preset = before.back().predicted_seconds - graph.step_seconds;
  const auto fits = std::ranges::find_if(
      after, [&](const MemoryPlan& plan) { return plan.predicted_peak <= before.back().predicted_peak; });
  EXPECT_LT(fits->predicted_seconds - graph.step_seconds, 0.8 * preset);
}

TEST(Annealing, FindsHowMuchMemoryCopiesShouldHave) {
  StepGraph step = synthetic::gpt_like({.blocks = 6});
  step.moves.host = MoveCost{.out_seconds_per_byte = 0.3 / 1_MiB,
                             .in_seconds_per_byte = 0.3 / 1_MiB,
                             .overlaps = true,
                             .budget = std::nullopt};
  std::vector<MemoryPlan> plans{plan_none(step)};
  for (MemoryPlan& plan : offloading_plans(step)) plans.push_back(predicted(step, std::move(plan)));
  const std::vector<MemoryPlan> without = front_of(std::move(plans));
  ASSERT_TRUE(std::ranges::all_of(without, [](const MemoryPlan& plan) { return plan.staging.leaving == 0; }));
  const auto after = with_annealing(step, without, {2'000'000});
  int with_memory = 0;
  for (const MemoryPlan& plan : after) with_memory += plan.staging.leaving > 0 && !plan.staging.order.empty() ? 1 : 0;
  EXPECT_GT(with_memory, 0);
  const Bytes half = (without.front().predicted_peak + without.back().predicted_peak) / 2;
  const MemoryPlan& plan = fastest_within(after, half);
  MemoryPlan waiting = plan;
  waiting.staging = {};
  EXPECT_LT(plan.predicted_seconds, predicted(step, std::move(waiting)).predicted_seconds);
}

TEST_F(Annealed, IsTheSameEachTime) {
  EXPECT_EQ(with_annealing(graph, before, {100'000}), with_annealing(graph, before, {100'000}));
}

TEST_F(Annealed, SpendsNothingWhereNothingCanBeGained) {
  // One plan, and no effort: as it was.
  EXPECT_EQ(with_annealing(graph, {before.front()}, {400'000}), std::vector{before.front()});
  EXPECT_EQ(with_annealing(graph, before, {0}), before);
}

}  // namespace
}  // namespace snug::plan
