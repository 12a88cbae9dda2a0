#include "snug/plan/several_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/in_flight.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

/// Two kinds of micro-batches in one process.
struct TwoStages {
  StepGraph small, large;
  explicit TwoStages(int blocks = 3)
      : small(synthetic::gpt_like({.blocks = blocks})), large(synthetic::gpt_like({.blocks = 2 * blocks})) {
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

TEST(SeveralStages, HaveAFloorThatDependsOnNoMeasuredTime) {
  for (std::uint64_t step = 0; step < 12; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step);
    std::vector<Bytes> floors;
    for (std::uint64_t recording = 0; recording < 4; ++recording) {
      StepGraph a = synthetic::random_graph(2 * step, 40), b = synthetic::random_graph(2 * step + 1, 40);
      synthetic::Dice dice(recording);
      for (StepGraph* const graph : {&a, &b}) {
        for (OpInfo& op : graph->ops) op.seconds = 1e-6 * (1 + dice.roll(10'000));
        graph->in_flight = graph == &a ? 3 : 2;
      }
      const Planner of_a(a, "optimal"), of_b(b, "optimal");
      const std::vector<StageSteps> stages{{&a, &of_a}, {&b, &of_b}};
      floors.push_back(floor_of_stages(stages));
      for (const MemoryPlan& plan : plan_stages(stages, Budget{.limit = floors.front(), .reserve = 0}))
        EXPECT_LE(plan.predicted_peak, floors.front()) << recording;
    }
    EXPECT_EQ(floors, std::vector<Bytes>(floors.size(), floors.front()));
  }
}

TEST(SeveralStages, HaveBoundsThatHoldWhateverTheOthersDo) {
  TwoStages two;
  const Planner small(two.small, "optimal"), large(two.large, "optimal");
  const std::vector<StageSteps> stages{{&two.small, &small}, {&two.large, &large}};
  keep_everything(two.graphs());
  const Bytes least = floor_of_stages(stages), most = plan_none(two.large).predicted_peak;
  int joint = 0;
  for (const int percent : {2, 20, 50, 90}) {
    const Bytes peak = least + (most - least) * percent / 100;
    const std::vector<MemoryPlan> plans = plan_stages(stages, Budget{.limit = peak});
    for (std::size_t i = 0; i < 2; ++i) {
      const LowerBound bound = lower_bound(*stages[i].graph, peak);
      EXPECT_LE(bound.peak, plans[i].predicted_peak) << percent;
      EXPECT_LE(bound.step_seconds, plans[i].predicted_seconds) << percent;
      EXPECT_EQ(std::ranges::max(simulate(*stages[i].graph, plans[i], Detail::Timeline).peaks),
                plans[i].predicted_peak);
    }
    // Other plans that fit together: one saves more, so that the other may be faster.
    const std::vector<LowerBound> bounds{lower_bound(two.small, peak), lower_bound(two.large, peak)};
    for (const MemoryPlan& a : small.trade_off()->plans()) {
      for (const MemoryPlan& b : large.trade_off()->plans()) {
        TwoStages then = two;
        set_others_held(then.graphs(), {a, b});
        const Simulation of_a = simulate(then.small, a), of_b = simulate(then.large, b);
        if (of_a.peak > peak || of_b.peak > peak) continue;
        ++joint;
        EXPECT_LE(bounds[0].step_seconds, of_a.seconds) << percent;
        EXPECT_LE(bounds[1].step_seconds, of_b.seconds) << percent;
        EXPECT_LE(bounds[0].peak, of_a.peak) << percent;
        EXPECT_LE(bounds[1].peak, of_b.peak) << percent;
      }
    }
  }
  EXPECT_GT(joint, 100);
}

TEST(SeveralStages, KeepTheBudgetsOfHostAndDiskTogether) {
  // 200 with make test-long.
  const char* const asked = std::getenv("SNUG_TRIALS");
  const int trials = asked != nullptr ? std::stoi(asked) : 20;
  int moving = 0;
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE(::testing::Message() << "trial " << trial);
    synthetic::Dice dice(static_cast<std::uint64_t>(trial));
    TwoStages two(1);
    const Bytes host = dice.roll(20) * 1_MiB, disk = dice.roll(20) * 1_MiB;
    for (StepGraph* const graph : two.graphs()) {
      graph->moves.host = MoveCost{.out_seconds_per_byte = 1e-9, .in_seconds_per_byte = 1e-9, .budget = host};
      graph->moves.disk = MoveCost{.out_seconds_per_byte = 1e-8, .in_seconds_per_byte = 1e-8, .budget = disk};
      graph->in_flight = 1 + dice.roll(3);
    }
    divide_tiers(two.graphs());
    const SearchOptions quick{.simulated_ops = 0};
    const Planner small(two.small, "optimal", quick), large(two.large, "optimal", quick);
    const std::vector<StageSteps> stages{{&two.small, &small}, {&two.large, &large}};
    const Bytes least = floor_of_stages(stages);
    keep_everything(two.graphs());
    const Bytes peak = least + (plan_none(two.large).predicted_peak - least) * dice.roll(100) / 100;
    const std::vector<MemoryPlan> plans = plan_stages(stages, Budget{.limit = peak});
    Bytes on_host = 0, on_disk = 0;
    for (std::size_t i = 0; i < 2; ++i) {
      const Simulation run = simulate(*stages[i].graph, plans[i]);
      EXPECT_EQ(run.peak, plans[i].predicted_peak);
      EXPECT_LE(run.peak, peak);
      on_host += run.host_peak;
      on_disk += run.disk_peak;
    }
    EXPECT_LE(on_host, host);
    EXPECT_LE(on_disk, disk);
    moving += on_host + on_disk > 0;
  }
  EXPECT_GT(moving, trials / 3);
}

TEST(SeveralStages, KnowTheLeastThatTheOthersHold) {
  TwoStages two;
  keep_everything(two.graphs());
  EXPECT_GT(two.small.others_least, 0) << "the loss's gradient needs something";
  EXPECT_LT(two.small.others_least, two.small.others_held);
  EXPECT_EQ(step_graph_from_json(nlohmann::json::parse(to_json(two.small).dump())).others_least,
            two.small.others_least);
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
