#include "snug/plan/greedy.h"

#include <gtest/gtest.h>

#include "snug/plan/does_not_fit.h"
#include "snug/plan/presets.h"
#include "snug/plan/simulator.h"
#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

constexpr Bytes kReserve = 12345;

DoesNotFit::Floor floor_of(const StepGraph& graph, Budget budget) {
  try {
    plan_greedy(graph, budget);
  } catch (const DoesNotFit& error) {
    return error.floor();
  }
  ADD_FAILURE() << "it fits";
  return {};
}

class GreedyOnAChain : public testing::Test {
 protected:
  const StepGraph graph = synthetic::gpt_like({.blocks = 8});
  const MemoryPlan none = plan_none(graph);
};

TEST_F(GreedyOnAChain, KeepsEverythingWhenItFits) {
  const MemoryPlan plan = plan_greedy(graph, {none.predicted_peak + kReserve, kReserve});
  EXPECT_EQ(plan.strategy, "greedy");
  EXPECT_EQ(plan.budget, none.predicted_peak + kReserve);
  EXPECT_EQ(plan.actions, none.actions);
  EXPECT_EQ(plan.predicted_seconds, graph.step_seconds);
}

TEST_F(GreedyOnAChain, FitsEveryBudgetDownToTheFloorAndPredictsWhatTheSimulatorSays) {
  const Bytes floor = plan_floor(graph).predicted_peak;
  EXPECT_LT(floor, none.predicted_peak / 3);
  for (Bytes budget = floor; budget <= none.predicted_peak; budget += 1_MiB) {
    SCOPED_TRACE(budget);
    const MemoryPlan plan = plan_greedy(graph, {budget + kReserve, kReserve});
    EXPECT_LE(plan.predicted_peak, budget);
    const Simulation run = simulate(graph, plan);
    EXPECT_EQ(run.peak, plan.predicted_peak);
    EXPECT_EQ(run.seconds, plan.predicted_seconds);
  }
}

TEST_F(GreedyOnAChain, NamesAFloorThatWorksAndNothingBelowIt) {
  const auto floor = floor_of(graph, {1_MiB, kReserve});
  EXPECT_EQ(floor.budget, 1_MiB);
  EXPECT_EQ(floor.floor, plan_floor(graph).predicted_peak + kReserve);
  EXPECT_EQ(floor.static_by_tag, graph.static_by_tag);
  EXPECT_EQ(floor.step_bytes, floor.floor - kReserve - graph.static_bytes);
  EXPECT_EQ(floor.strategy, "greedy");
  EXPECT_LE(plan_greedy(graph, {floor.floor, kReserve}).predicted_peak, floor.floor - kReserve);
  EXPECT_EQ(floor_of(graph, {floor.floor - 1, kReserve}).floor, floor.floor);
}

TEST_F(GreedyOnAChain, NamesAFloorThatWorksUnderAnAllocatorsLimit) {
  // The reserve grows with the limit, so the floor is not the peak and the reserve of the budget that was too small.
  for (const Bytes width : {16_KiB, 300_KiB, 1_MiB, 8_MiB}) {
    SCOPED_TRACE(width);
    const StepGraph other = synthetic::gpt_like({.blocks = 8, .width = width, .static_bytes = 0});
    const auto floor = floor_of(other, Budget::for_limit(100_KiB));
    EXPECT_NO_THROW(plan_greedy(other, Budget::for_limit(floor.floor)));
    EXPECT_THROW(plan_greedy(other, Budget::for_limit(floor.floor - 1)), DoesNotFit);
  }
}

TEST_F(GreedyOnAChain, IsNeverSlowerThanAPresetThatFits) {
  for (const MemoryPlan& preset : {plan_every_block(graph), plan_sqrt(graph)}) {
    for (const Bytes more : {Bytes{0}, 1_MiB, 5_MiB, 20_MiB}) {
      SCOPED_TRACE(preset.strategy);
      EXPECT_LE(plan_greedy(graph, {preset.predicted_peak + more, 0}).predicted_seconds, preset.predicted_seconds);
    }
  }
}

TEST_F(GreedyOnAChain, TakesNoLessTimeUnderASmallerBudget) {
  double before = 0;
  for (Bytes budget = none.predicted_peak; budget >= plan_floor(graph).predicted_peak; budget -= 512_KiB) {
    const double seconds = plan_greedy(graph, {budget, 0}).predicted_seconds;
    EXPECT_GE(seconds, before) << budget;
    before = seconds;
  }
  EXPECT_GT(before, none.predicted_seconds);
}

TEST_F(GreedyOnAChain, DropsTheCheapestSecondsPerByteFirst) {
  // The gelu takes 0.8 seconds for four units; nothing saved is cheaper but the norms.
  const MemoryPlan plan = plan_greedy(graph, {none.predicted_peak - 1, 0});
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (plan.keeps(v) || !graph.values[static_cast<std::size_t>(v)].saved) continue;
    const std::string& name = graph.ops[static_cast<std::size_t>(graph.flow.producer(v))].name;
    EXPECT_TRUE(name == "aten::native_layer_norm" || name == "aten::gelu" || name == "aten::add") << name;
  }
  EXPECT_LE(plan.predicted_seconds, none.predicted_seconds + 2);
}

TEST(Greedy, IsDeterministic) {
  const StepGraph graph = synthetic::random_graph(7, 40);
  const Budget budget{(plan_none(graph).predicted_peak + plan_floor(graph).predicted_peak) / 2, 0};
  EXPECT_EQ(plan_greedy(graph, budget), plan_greedy(graph, budget));
}

TEST(Greedy, FitsAndBeatsThePresetsOnRandomSteps) {
  int planned = 0, dropped = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const StepGraph graph = synthetic::random_graph(seed, 10 + static_cast<int>(seed % 50));
    const Bytes most = plan_none(graph).predicted_peak;
    const Bytes least = plan_floor(graph).predicted_peak;
    ASSERT_LE(least, most);
    for (int part = 0; part <= 4; ++part) {
      const Bytes budget = least + (most - least) * part / 4;
      const MemoryPlan plan = plan_greedy(graph, {budget, 0});
      ASSERT_LE(plan.predicted_peak, budget);
      ASSERT_EQ(simulate(graph, plan).peak, plan.predicted_peak);
      for (const MemoryPlan& preset : {plan_every_block(graph), plan_sqrt(graph)}) {
        if (preset.predicted_peak <= budget) {
          ASSERT_LE(plan.predicted_seconds, preset.predicted_seconds);
        }
      }
      ++planned;
      dropped += plan.predicted_seconds > graph.step_seconds;
    }
    ASSERT_EQ(floor_of(graph, {least - 1, 0}).floor, least);
  }
  EXPECT_EQ(planned, 300);
  EXPECT_GT(dropped, 60);
}

TEST(Greedy, PlansAStepWithoutSavedTensors) {
  synthetic::GraphBuilder g(100);
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 50);
  g.die(a);
  g.settle();
  const MemoryPlan plan = plan_greedy(g.graph(), {150, 0});
  EXPECT_EQ(plan.predicted_peak, 150);
  EXPECT_THROW(plan_greedy(g.graph(), {149, 0}), DoesNotFit);
}

}  // namespace
}  // namespace snug::plan
