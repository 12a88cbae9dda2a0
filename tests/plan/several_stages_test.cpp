#include "snug/plan/several_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/in_flight.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

/// Two kinds of micro-batches in one process.
struct TwoStages {
  StepGraph small = synthetic::gpt_like({.blocks = 3}), large = synthetic::gpt_like({.blocks = 6});
  TwoStages() {
    small.in_flight = 3;
    large.in_flight = 2;
  }
  [[nodiscard]] std::vector<StepGraph*> graphs() { return {&small, &large}; }
};

TEST(SeveralStages, KnowWhatTheOthersHold) {
  TwoStages two;
  const Bytes alone = simulate(two.small, plan_none(two.small)).peak;
  keep_everything(two.graphs());
  const Bytes by_each = held_in_between(two.large, plan_none(two.large));
  EXPECT_GT(by_each, 0);
  EXPECT_EQ(two.small.others_held, 2 * by_each);
  EXPECT_EQ(simulate(two.small, plan_none(two.small)).peak, alone + 2 * by_each);
}

TEST(SeveralStages, KnowWhatIsInFlightAtOnce) {
  TwoStages two;
  const std::uint64_t small = two.small.fingerprint(), large = two.large.fingerprint();
  const Bytes by_small = held_in_between(two.small, plan_none(two.small)),
              by_large = held_in_between(two.large, plan_none(two.large));
  two.small.in_flight_with = {{{small, 3}, {large, 0}}, {{small, 1}, {large, 2}}};  // never all of both
  two.large.in_flight_with = {{{small, 1}, {large, 2}}};
  keep_everything(two.graphs());
  EXPECT_EQ(two.small.others_held, std::max<Bytes>(0, by_small + 2 * by_large - 3 * by_small));
  EXPECT_EQ(two.large.others_held, by_small);
}

TEST(SeveralStages, FitTogether) {
  TwoStages two;
  const Planner small(two.small, "optimal"), large(two.large, "optimal");
  const std::vector<StageSteps> stages{{&two.small, &small}, {&two.large, &large}};
  keep_everything(two.graphs());
  const Bytes most = plan_none(two.large).predicted_peak;
  const Bytes least = floor_of_stages(stages);
  ASSERT_LT(least, most / 2);
  double before = 0;
  for (const int percent : {100, 80, 50, 20, 0}) {
    const Bytes peak = least + (most - least) * percent / 100;
    const std::vector<MemoryPlan> plans = plan_stages(stages, Budget{.limit = peak});
    ASSERT_EQ(plans.size(), 2U);
    std::vector<Bytes> held;
    for (std::size_t i = 0; i < 2; ++i)
      held.push_back(stages[i].graph->in_flight * held_in_between(*stages[i].graph, plans[i]));
    double seconds = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(stages[i].graph->others_held, held[1 - i]);
      EXPECT_EQ(plans[i].predicted_peak, simulate(*stages[i].graph, plans[i]).peak);
      EXPECT_LE(plans[i].predicted_peak, peak) << percent;
      EXPECT_EQ(plans[i].budget, peak);
      seconds += plans[i].predicted_seconds;
    }
    if (percent > 0) {
      EXPECT_GE(std::max(plans[0].predicted_peak, plans[1].predicted_peak), peak * 8 / 10) << percent;
    }
    EXPECT_GE(seconds, before) << percent;
    before = seconds;
  }
  EXPECT_THROW(plan_stages(stages, Budget{.limit = least - 1}), DoesNotFit);
}

TEST(SeveralStages, KeepEverythingWithoutABudget) {
  TwoStages two;
  const Planner small(two.small, "optimal"), large(two.large, "optimal");
  const auto plans = plan_stages({{&two.small, &small}, {&two.large, &large}}, std::nullopt);
  EXPECT_EQ(plans[0].actions, plan_none(two.small).actions);
  EXPECT_EQ(plans[1].actions, plan_none(two.large).actions);
}

}  // namespace
}  // namespace snug::plan
