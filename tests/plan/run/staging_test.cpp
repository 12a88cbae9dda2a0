// Copies that a step does not wait for: whose memory is taken until when, and what they take of the step's time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "snug/plan/run/departures.h"
#include "snug/plan/run/prefetch.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/run/staging.h"
#include "snug/plan/step/legal_actions.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using synthetic::GraphBuilder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Departures, EndWithTheOldestWhereMoreIsOnItsWayThanMayBe) {
  Departures leaving;
  EXPECT_THAT(leaving.begin(1, 40, 100), IsEmpty());
  EXPECT_THAT(leaving.begin(2, 60, 100), IsEmpty());
  EXPECT_THAT(leaving.begin(3, 50, 100), ElementsAre(1, 2)) << "60 and 50 are more than 100 too";
  EXPECT_THAT(leaving.begin(4, 101, 100), ElementsAre(3, 4)) << "alone it is too much";
  EXPECT_TRUE(leaving.empty());
  EXPECT_THAT(leaving.begin(5, 1, 0), ElementsAre(5)) << "nobody may be on the way";
  EXPECT_THAT(leaving.begin(6, 30, 100), IsEmpty());
  EXPECT_THAT(leaving.begin(7, 70, 100), IsEmpty());
  leaving.end(6);
  leaving.end(8);
  EXPECT_THAT(leaving.begin(8, 30, 100), IsEmpty()) << "what has ended takes nothing";
  EXPECT_THAT(leaving.end_all(), ElementsAre(7, 8));
  EXPECT_THAT(leaving.end_all(), IsEmpty());
}

TEST(Prefetch, ThatIsRefusedCountsForNothing) {
  Dataflow flow;
  const ValueId leaf = flow.add_leaf();
  std::vector<ValueId> values;
  for (int i = 0; i < 2; ++i) {
    flow.add_op(std::vector<ValueId>{leaf}, kRootSegment);
    values.push_back(flow.add_output(kNoValue));
  }
  Ledger ledger(flow, [](ValueId) {});
  ledger.hold(leaf);
  for (const ValueId v : values) ledger.pack(v), ledger.offload(v);
  ledger.settle(Leaves::Stay);
  ledger.begin_pass();
  Prefetch prefetch({.leaving = 0, .arriving = 100, .first = 1, .order = values});
  const auto bytes = [](ValueId) { return Bytes{50}; };
  std::vector<ValueId> fetched;
  const auto refuse = [](ValueId) { return false; };
  const auto fetch = [&](ValueId v) { return fetched.push_back(v), ledger.cache(v), true; };
  prefetch.unpacked(ledger, bytes, fetch);
  EXPECT_THAT(fetched, IsEmpty()) << "not before the second";
  for (int i = 0; i < 3; ++i) prefetch.unpacked(ledger, bytes, refuse);
  prefetch.unpacked(ledger, bytes, fetch);
  EXPECT_EQ(fetched, values) << "there is room for both";
}

/// Six operators of a second and 100 bytes, each of which saves what it makes, and their backward pass: 12 seconds.
struct SixOps {
  std::vector<ValueId> values;
  StepGraph graph;
};
SixOps six_ops(double seconds_per_byte, bool overlaps) {
  SixOps six;
  GraphBuilder g;
  ValueId last = g.leaf();
  for (int i = 0; i < 6; ++i) {
    const ValueId next = g.op("op", {last}, 100, 1);
    g.save(next);
    if (i > 0) g.die(last);
    six.values.push_back(last = next);
  }
  g.die(last);
  g.settle();
  for (int i = 5; i >= 0; --i) g.node({six.values[static_cast<std::size_t>(i)]}, 0);
  six.graph = g.take();
  six.graph.moves.host = MoveCost{.out_seconds_per_byte = seconds_per_byte,
                                  .in_seconds_per_byte = seconds_per_byte,
                                  .seconds_per_copy = 0,
                                  .overlaps = overlaps,
                                  .budget = std::nullopt};
  return six;
}

MemoryPlan all_moved(const SixOps& six) {
  MemoryPlan plan = plan_none(six.graph);
  for (const ValueId v : six.values) plan.actions[at(v)] = kMove;
  return plan;
}

TEST(Staging, HidesCopiesBehindWhatIsComputedForMemory) {
  const SixOps six = six_ops(0.005, true);  // half a second for each, each way
  const MemoryPlan waiting = all_moved(six);
  const Simulation one_by_one = simulate(six.graph, waiting);
  EXPECT_DOUBLE_EQ(one_by_one.waiting_seconds, 12 * 0.5) << "without memory for them the step waits for each";
  EXPECT_EQ(one_by_one.peak, 200) << "the program has two at a time";

  const Simulation hidden = simulate(six.graph, staged(six.graph, waiting, 100, 100));
  // For the last to leave when the forward pass is over, and for it to come back; then each comes while the node before
  // it computes.
  EXPECT_DOUBLE_EQ(hidden.waiting_seconds, 0.5 + 0.5);
  EXPECT_DOUBLE_EQ(hidden.seconds, six.graph.step_seconds + 1);
  EXPECT_EQ(hidden.peak, 200) << "what leaves is what the program has yet";
  EXPECT_EQ(hidden.host_peak, one_by_one.host_peak);

  const Simulation out_alone = simulate(six.graph, staged(six.graph, waiting, 100, 0));
  EXPECT_DOUBLE_EQ(out_alone.waiting_seconds, 0.5 + 6 * 0.5);
}

TEST(Staging, TakesTheMemoryOfWhatIsOnItsWayUntilItIsWaitedFor) {
  const SixOps six = six_ops(0.005, true);
  for (const Bytes leaving : {0, 100, 200, 300, 600}) {
    MemoryPlan plan = staged(six.graph, all_moved(six), leaving, 0);
    const Simulation run = simulate(six.graph, plan, Detail::Timeline);
    // One beside those that the program has: two while an operator runs.
    EXPECT_EQ(run.peak, std::max<Bytes>(200, leaving == 600 ? 600 : leaving + 100)) << leaving;
    EXPECT_EQ(run.after_forward, 0) << "nothing is on its way when the forward pass is over";
    EXPECT_EQ(run.timeline.back(), 0);
  }
}

TEST(Staging, HidesNothingWhereTheLinkIsSlowerThanTheStep) {
  const SixOps six = six_ops(0.05, true);  // five seconds each way
  const Simulation run = simulate(six.graph, staged(six.graph, all_moved(six), 600, 600));
  // Out: from the first second on. In: six, from the beginning of backward on, one after the other.
  const double backward_begins = 1 + 6 * 5, node = 2;
  EXPECT_GE(run.seconds, backward_begins + 6 * 5);
  EXPECT_LE(run.seconds, backward_begins + 6 * 5 + 2 * node);
}

TEST(Staging, FetchesAheadNoMoreThanItHasMemoryFor) {
  const SixOps six = six_ops(0.005, true);
  for (const Bytes arriving : {100, 200, 300}) {
    const MemoryPlan plan = staged(six.graph, all_moved(six), 0, arriving);
    EXPECT_THAT(plan.staging.order,
                ElementsAre(six.values[5], six.values[4], six.values[3], six.values[2], six.values[1], six.values[0]));
    const Simulation run = simulate(six.graph, plan, Detail::Timeline);
    const std::size_t settle = six.graph.settle_event();
    EXPECT_EQ(*std::max_element(run.timeline.begin() + static_cast<std::ptrdiff_t>(settle), run.timeline.end()),
              100 + arriving)
        << "beside the one that the node has";
  }
}

TEST(Staging, IsAsIfTheStepWaitedWhereNothingIsOnItsWay) {
  // Whatever the device can do: a plan without memory for copies waits for each.
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    StepGraph graph = synthetic::random_graph(seed, 4 + static_cast<int>(seed % 12));
    graph.moves.host = MoveCost{.out_seconds_per_byte = 1e-3,
                                .in_seconds_per_byte = 2e-3,
                                .seconds_per_copy = 1e-4,
                                .overlaps = seed % 2 == 0,
                                .budget = std::nullopt};
    MemoryPlan plan = plan_none(graph);
    std::uint64_t bits = seed * 0x9E3779B97F4A7C15;
    double seconds = 0;
    for (ValueId v = 0; v < graph.flow.values(); ++v) {
      if (may_move(graph, v) && ((bits >>= 1) & 1) != 0) plan.actions[at(v)] = kMove;
    }
    const Simulation run = simulate(graph, plan);
    for (const ValueId v : run.asked) {
      if (plan.action(v) == kMove) seconds += graph.moves.host->in(graph.step_bytes(v));
    }
    EXPECT_GE(run.waiting_seconds, seconds * (1 - 1e-12)) << seed;
    const Simulation more = simulate(graph, staged(graph, plan, 1_MiB, 1_MiB));
    EXPECT_EQ(more.after_forward, run.after_forward) << seed;
    EXPECT_EQ(more.replayed_ops, run.replayed_ops) << seed;
  }
}

}  // namespace
}  // namespace snug::plan
