#include "snug/plan/strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "snug/base/errors.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/greedy.h"
#include "snug/plan/presets.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using testing::HasSubstr;

const StepGraph& graph() {
  static const StepGraph chain = synthetic::gpt_like({.blocks = 6});
  return chain;
}
const Budget kAmple{1_GiB, 1_MiB};

TEST(MakePlan, KnowsEveryStrategyByItsName) {
  EXPECT_THAT(strategies(), testing::ElementsAre("none", "every_block", "sqrt", "greedy"));
  const MemoryPlan none = plan_none(graph());
  for (const std::string& name : strategies()) {
    SCOPED_TRACE(name);
    for (const std::optional<Budget>& budget : {std::optional<Budget>(), std::optional(kAmple)}) {
      const MemoryPlan plan = make_plan(graph(), name, budget);
      EXPECT_EQ(plan.strategy, name);
      EXPECT_EQ(plan.budget, budget ? 1_GiB : 0);
      EXPECT_EQ(plan.fingerprint, graph().fingerprint());
      EXPECT_EQ(plan.unplanned_peak, none.predicted_peak);
      EXPECT_EQ(plan.unplanned_seconds, graph().step_seconds);
    }
  }
}

TEST(MakePlan, MakesThePresetsPlans) {
  EXPECT_EQ(make_plan(graph(), "none", {}).actions, plan_none(graph()).actions);
  EXPECT_EQ(make_plan(graph(), "every_block", {}).actions, plan_every_block(graph()).actions);
  EXPECT_EQ(make_plan(graph(), "sqrt", {}).segments, plan_sqrt(graph()).segments);
  const Budget tight{plan_none(graph()).predicted_peak - 10_MiB, 0};
  EXPECT_EQ(make_plan(graph(), "greedy", tight).actions, plan_greedy(graph(), tight).actions);
}

TEST(MakePlan, KeepsEverythingWithoutABudget) {
  const MemoryPlan plan = make_plan(graph(), "greedy", {});
  EXPECT_EQ(plan.actions, plan_none(graph()).actions);
  EXPECT_EQ(plan.predicted_peak, plan.unplanned_peak);
}

TEST(MakePlan, NamesAnUnknownStrategyAndThoseThatThereAre) {
  try {
    make_plan(graph(), "gredy", {});
    FAIL() << "it was accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "plan: unknown strategy \"gredy\"; there are none, every_block, sqrt, greedy");
  }
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
  }
  EXPECT_EQ(make_plan(graph(), "none", Budget{peak + 100, 100}).predicted_peak, peak);
}

TEST(MakePlan, NamesAFloorThatEachStrategyCanDoWith) {
  for (const std::string& name : strategies()) {
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
