#include "snug/plan/bound/lower_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "snug/plan/bound/relaxation.h"
#include "snug/plan/bound/unavoidable.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

/// What the tightest single moment proves.
double of_one_moment(const StepGraph& graph, Bytes peak) {
  const std::vector<Bytes> unavoidable = unavoidable_bytes(graph);
  double most = 0;
  for (std::size_t event = 0; event < graph.events.size(); ++event) {
    const Moment moment(graph, event);
    most =
        std::max(most, Relaxation(graph, moment).least_seconds(static_cast<double>(peak - unavoidable[event])).seconds);
  }
  return graph.step_seconds + most;
}

TEST(LowerBound, ProvesMoreFromTwoMomentsThanFromAnyOne) {
  int more = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const StepGraph graph = synthetic::random_graph(seed, 40);
    const Bytes least = lower_bound_of_peak(graph), most = simulate(graph, plan_none(graph)).peak;
    for (int percent : {20, 50, 80}) {
      const Bytes peak = least + (most - least) * percent / 100;
      const double one = of_one_moment(graph, peak), both = lower_bound(graph, peak).step_seconds;
      if (both > one * (1 + 1e-9)) ++more;
    }
  }
  // Of 120. A bound that forgets part of a moment is still true, and more in fewer of them.
  EXPECT_GE(more, 17);
}

/// What is dear to make is asked for early, and what is cheap to make of it later: moved, it is fetched for a replay.
TEST(LowerBound, HoldsForWhatIsMovedAndReadByReplaysAlone) {
  synthetic::GraphBuilder g;
  const ValueId x = g.op("start", {g.leaf()}, 1_KiB, 0.01);
  const ValueId dear = g.op("dear", {x}, 1_MiB, 100);
  g.save(dear);
  const ValueId wide = g.op("expand", {dear}, 8_MiB, 0.1);
  g.save(wide);
  const ValueId loss = g.op("loss", {wide}, 1_KiB, 0.01);
  g.die(x);
  g.die(dear);
  g.die(wide);
  g.settle();
  g.node({dear}, 1_KiB);
  g.other(10_MiB, 0);  // here neither is to be there
  g.node({wide}, 1_KiB);
  g.die(loss);
  StepGraph graph = g.take();
  graph.moves.host =
      MoveCost{.out_seconds_per_byte = 1e-9, .in_seconds_per_byte = 1e-9, .seconds_per_copy = 0, .budget = 1_MiB};
  MemoryPlan plan = plan_none(graph);
  plan.actions[at(dear)] = kMove;
  plan.actions[at(wide)] = kRecompute;
  const Simulation run = simulate(graph, plan);
  EXPECT_LT(run.seconds, graph.step_seconds + 1) << "nothing dear runs again";
  EXPECT_LE(lower_bound(graph, run.peak).step_seconds, run.seconds * (1 + 1e-12));
}

}  // namespace
}  // namespace snug::plan
