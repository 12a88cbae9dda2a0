#include "snug/plan/run/in_flight.h"

#include <gtest/gtest.h>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/planner.h"
#include "snug/plan/run/presets.h"
#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

using synthetic::GraphBuilder;

StepGraph in_flight(StepGraph graph, int micro_batches) {
  graph.in_flight = micro_batches;
  return graph;
}

/// leaf -> a (100) -> b (200) -> c (400); a and b are saved, c goes when the forward pass is over.
StepGraph chain() {
  GraphBuilder g(1000);
  const ValueId a = g.op("a", {g.leaf()}, 100, 1);
  const ValueId b = g.op("b", {a}, 200, 2, 10);
  g.save(a);
  const ValueId c = g.op("c", {b}, 400, 4);
  g.save(b);
  g.die(a);
  g.die(b);
  g.settle();
  g.die(c);
  g.node({b}, 500);
  g.node({a}, 50);
  return g.take();
}

TEST(OthersInFlight, HoldWhatIsThereBetweenForwardAndBackward) {
  const StepGraph graph = chain();
  const Simulation one = simulate(graph, plan_none(graph), Detail::Timeline);
  EXPECT_EQ(one.peak, 1000 + 300 + 500);
  const StepGraph three = in_flight(graph, 3);
  const Simulation all = simulate(three, plan_none(three), Detail::Timeline);
  EXPECT_EQ(all.peak, one.peak + 2 * 300) << "c is not held";
  EXPECT_EQ(all.peak_event, one.peak_event);
  for (std::size_t i = 0; i < one.timeline.size(); ++i) EXPECT_EQ(all.timeline[i], one.timeline[i] + 600) << i;
  EXPECT_EQ(all.seconds, one.seconds);
  MemoryPlan plan = plan_none(three);
  plan.actions[at(graph.flow.outputs(1).front().value)] = kRecompute;
  // Each of the others holds `a` alone, and this one makes b again.
  EXPECT_EQ(simulate(three, plan).peak, 1000 + 100 + 200 + 500 + 2 * 100);
}

TEST(OthersInFlight, AreGoneWhenTheUpdateComes) {
  StepGraph graph = in_flight(chain(), 3);
  graph.end_with_update({700}, 1);
  EXPECT_EQ(simulate(graph, plan_none(graph)).peak, 1000 + 300 + 500 + 600);
  graph.events.pop_back();
  graph.end_with_update({5000}, 1);
  const Simulation run = simulate(graph, plan_none(graph), Detail::Timeline);
  EXPECT_EQ(run.peak, 6000);
  EXPECT_EQ(run.peak_event, graph.events.size() - 1);
  EXPECT_EQ(run.timeline.back(), 1000);
}

TEST(OthersInFlight, TakeOfTiersWhatEachMoves) {
  StepGraph graph = in_flight(chain(), 3);
  const ValueId a = graph.flow.outputs(0).front().value;
  const auto with_budget = [&](Bytes bytes) {
    graph.moves.host = MoveCost{.out_seconds_per_byte = 1e-9, .in_seconds_per_byte = 1e-9, .budget = bytes};
    MemoryPlan plan = plan_none(graph);
    plan.actions[at(a)] = kMove;
    return simulate_within(graph, plan, 100);
  };
  ASSERT_TRUE(with_budget(12_KiB)) << "a page each";
  EXPECT_EQ(with_budget(12_KiB)->host_peak, 12_KiB);
  EXPECT_FALSE(with_budget(12_KiB - 1));
}

/// A price for what is there between forward and backward counts as often as micro-batches are in flight.
TEST(OthersInFlight, ArePlannedWithCloseToTheBound) {
  const StepGraph graph = in_flight(synthetic::gpt_like({.blocks = 6}), 4);
  const Planner planner(graph, "optimal");
  const Bytes least = planner.floor(graph), most = plan_none(graph).predicted_peak;
  for (const int percent : {20, 40, 60, 80}) {
    const Bytes peak = least + (most - least) * percent / 100;
    const MemoryPlan plan = planner.plan(graph, Budget{.limit = peak});
    const double bound = lower_bound(graph, peak).step_seconds;
    EXPECT_EQ(simulate(graph, plan).peak, plan.predicted_peak);
    EXPECT_LE(plan.predicted_peak, peak);
    EXPECT_GE(plan.predicted_seconds, bound * (1 - 1e-9));
    EXPECT_LE(plan.predicted_seconds, bound * 1.05) << percent;
    EXPECT_GT(bound, graph.step_seconds) << percent;
  }
}

}  // namespace
}  // namespace snug::plan
