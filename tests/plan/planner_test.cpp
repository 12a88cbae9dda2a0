#include "snug/plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "snug/base/errors.h"
#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/strategy.h"
#include "snug/plan/trade_off.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using ::testing::HasSubstr;

const StepGraph& graph() {
  static const StepGraph chain = synthetic::gpt_like({.blocks = 6});
  return chain;
}
const Budget kAmple{1_GiB, 1_MiB};

const std::vector<std::string> kStrategies{
    "optimal",       "none",           "every_block",     "chen_sqrt",
    "revolve(2)",    "sequential(3)",  "full_uniform(2)", "selective(aten::addmm)",
    "full_block(4)", "core_attention", "eviction"};

TEST(MakePlan, MakesAPlanByEveryStrategy) {
  // And those that move, or name modules: see offload_presets_test and module_presets_test.
  ASSERT_EQ(kStrategies.size() + 5, strategy_forms().size());
  const MemoryPlan none = plan_none(graph());
  for (const std::string& name : kStrategies) {
    SCOPED_TRACE(name);
    for (const std::optional<Budget>& budget : {std::optional<Budget>(), std::optional(kAmple)}) {
      const MemoryPlan plan = make_plan(graph(), name, budget);
      EXPECT_EQ(plan.strategy, name);
      EXPECT_EQ(plan.budget, budget ? 1_GiB : 0);
      EXPECT_EQ(plan.fingerprint, graph().fingerprint());
      EXPECT_EQ(plan.unplanned_peak, none.predicted_peak);
      EXPECT_EQ(plan.unplanned_seconds, graph().step_seconds);
      if (name != "eviction" || !budget) {
        EXPECT_EQ(plan.predicted_peak, simulate(graph(), plan).peak);
      }
    }
  }
}

TEST(MakePlan, MakesThePresetsPlans) {
  EXPECT_EQ(make_plan(graph(), "none", {}).actions, plan_none(graph()).actions);
  EXPECT_EQ(make_plan(graph(), "every_block", {}).actions, plan_every_block(graph()).actions);
  EXPECT_EQ(make_plan(graph(), "chen_sqrt", {}).segments, plan_chen_sqrt(graph()).segments);
  EXPECT_EQ(make_plan(graph(), "revolve(2)", {}).segments, plan_revolve(graph(), 2).segments);
  EXPECT_EQ(make_plan(graph(), "full_block(4)", {}).segments, plan_full_block(graph(), 4).segments);
  const Budget tight{plan_none(graph()).predicted_peak - 10_MiB, 0};
  EXPECT_EQ(make_plan(graph(), "optimal", tight).actions, TradeOff(graph()).best(graph(), tight).actions);
}

TEST(MakePlan, KeepsEverythingWithoutABudget) {
  const MemoryPlan plan = make_plan(graph(), "optimal", {});
  EXPECT_EQ(plan.actions, plan_none(graph()).actions);
  EXPECT_EQ(plan.predicted_peak, plan.unplanned_peak);
}

TEST(Planner, FollowsStaticBytesThatChange) {
  const Planner planner(graph(), "optimal");
  StepGraph later = graph();
  later.static_bytes += 7_MiB;
  const Budget budget{planner.floor(graph()) + 20_MiB, 0};
  const MemoryPlan before = planner.plan(graph(), budget);
  const MemoryPlan after = planner.plan(later, budget);
  EXPECT_EQ(planner.floor(later), planner.floor(graph()) + 7_MiB);
  EXPECT_EQ(after.predicted_peak, simulate(later, after).peak);
  EXPECT_LE(after.predicted_peak, budget.limit);
  EXPECT_EQ(after.unplanned_peak, before.unplanned_peak + 7_MiB);
  EXPECT_GT(after.predicted_seconds, before.predicted_seconds);
  EXPECT_THROW((void)planner.plan(later, Budget{planner.floor(later) - 1, 0}), DoesNotFit);
}

TEST(Planner, LeavesThePeakToEviction) {
  const Planner planner(graph(), "eviction");
  const MemoryPlan none = plan_none(graph());
  EXPECT_EQ(planner.floor(graph()), lower_bound_of_peak(graph()));
  EXPECT_EQ(planner.plan(graph(), {}).predicted_peak, none.predicted_peak);
  const Bytes half = none.predicted_peak / 2;
  EXPECT_EQ(planner.plan(graph(), Budget{half, 0}).predicted_peak, half);
  EXPECT_EQ(planner.plan(graph(), Budget{half, 0}).actions, none.actions);
  EXPECT_THROW((void)planner.plan(graph(), Budget{planner.floor(graph()) - 1, 0}), DoesNotFit);
}

TEST(Planner, PredictsAGivenPlanAnew) {
  MemoryPlan given = plan_every_block(graph());
  const Bytes peak = std::exchange(given.predicted_peak, 1);
  const Planner planner(graph(), given);
  EXPECT_EQ(planner.plan(graph(), {}).predicted_peak, peak);
  EXPECT_EQ(planner.plan(graph(), Budget{peak, 0}).actions, given.actions);
  EXPECT_THROW((void)planner.plan(graph(), Budget{peak - 1, 0}), DoesNotFit);
}

TEST(LowerBoundWithin, ABudgetIsOfPlansForItsBlocksAndWithoutOneOfThePlanThatKeepsEverything) {
  const Bytes peak = plan_none(graph()).predicted_peak;
  const auto seconds = [](std::optional<Budget> budget) { return lower_bound_within(graph(), budget).step_seconds; };
  EXPECT_EQ(seconds({}), graph().step_seconds);
  EXPECT_EQ(seconds(Budget{peak + 100, 100}), graph().step_seconds);
  EXPECT_GT(seconds(Budget{peak, peak / 2}), graph().step_seconds);
}

TEST(MakePlan, NamesTheFloorOfTheStrategyThatDoesNotFit) {
  const Bytes peak = plan_none(graph()).predicted_peak;
  try {
    make_plan(graph(), "none", Budget{peak + 99, 100});
    FAIL() << "it fits";
  } catch (const DoesNotFit& error) {
    EXPECT_EQ(error.floor().floor, peak + 100);
    EXPECT_EQ(error.floor().budget, peak + 99);
    EXPECT_EQ(error.floor().strategy, "none");
    EXPECT_EQ(error.floor().step_bytes, peak - graph().static_bytes);
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("weights 10.0 MiB"), HasSubstr("the step itself"),
                                    HasSubstr(std::to_string(peak + 100) + " bytes")));
    EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    EXPECT_THAT(error.what(), HasSubstr("or use a smaller batch or sequence"));
  }
  EXPECT_EQ(make_plan(graph(), "none", Budget{peak + 100, 100}).predicted_peak, peak);
  try {
    make_plan(graph(), "none", Budget{graph().static_bytes, 0});
    FAIL() << "it fits";
  } catch (const DoesNotFit& error) {
    EXPECT_THAT(error.what(), HasSubstr("no smaller step helps, as what is there before it takes " +
                                        format_bytes(graph().static_bytes)));
  }
}

TEST(MakePlan, NamesAFloorThatEachStrategyCanDoWith) {
  for (const std::string& name : kStrategies) {
    SCOPED_TRACE(name);
    Bytes floor = 0;
    try {
      make_plan(graph(), name, Budget::for_limit(2_MiB));
      FAIL() << "it fits";
    } catch (const DoesNotFit& error) {
      floor = error.floor().floor;
    }
    EXPECT_LE(make_plan(graph(), name, Budget::for_limit(floor)).predicted_peak, floor);
    EXPECT_THROW(make_plan(graph(), name, Budget::for_limit(floor - 1)), DoesNotFit);
  }
}

}  // namespace
}  // namespace snug::plan
