#include "snug/plan/run/simulator.h"

#include <gtest/gtest.h>

#include "snug/plan/run/presets.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/run/step_interpreter.h"

namespace snug::plan {
namespace {

using synthetic::GraphBuilder;

MemoryPlan dropping(const StepGraph& graph, const std::vector<ValueId>& dropped) {
  MemoryPlan plan = plan_none(graph);
  for (ValueId v : dropped) plan.actions[static_cast<std::size_t>(v)] = kRecompute;
  return plan;
}

/// leaf -> a (100) -> b (200) -> c (400); a and b are saved.
struct ThreeOps {
  ValueId leaf, a, b, c;
  StepGraph graph;
};
ThreeOps three_ops() {
  GraphBuilder g(1000);
  ThreeOps t;
  t.leaf = g.leaf();
  t.a = g.op("a", {t.leaf}, 100, 1);
  t.b = g.op("b", {t.a}, 200, 2, 10);
  g.save(t.a);
  t.c = g.op("c", {t.b}, 400, 4);
  g.save(t.b);
  g.die(t.a);
  g.die(t.b);
  g.settle();
  g.node({t.b}, 50);
  g.node({t.a}, 50);
  g.die(t.c);
  t.graph = g.take();
  return t;
}

TEST(Simulate, KeepsEverythingThatIsSavedUntilItsNodeReleasesIt) {
  const ThreeOps t = three_ops();
  const Simulation run = simulate(t.graph, plan_none(t.graph), Detail::Timeline);
  // Run a, run b, save, run c, save, die, die, settle, unpack b, other, release b, unpack a, other, release a, die c.
  EXPECT_EQ(run.timeline, (std::vector<Bytes>{1100, 1300, 1300, 1700, 1700, 1700, 1700, 1700, 1700, 1700, 1500, 1500,
                                              1500, 1400, 1000}));
  EXPECT_EQ(run.peak, 1000 + 100 + 200 + 400 + 50);
  EXPECT_EQ(run.peak_op, kNoOp);
  EXPECT_EQ(run.peak_event, 9U);
  // Operators of 1, 2 and 4 s, and a backward pass of twice that in seven events.
  EXPECT_EQ(run.times, (std::vector<double>{1, 3, 3, 7, 7, 7, 7, 7, 9, 11, 13, 15, 17, 19, 21}));
  EXPECT_EQ(run.after_forward, 1700);
  EXPECT_EQ(run.replayed_ops, 0);
  EXPECT_EQ(run.seconds, t.graph.step_seconds);
}

TEST(Simulate, HasAPeakDuringAnEventOfGraphsThatContradictThemselves) {
  ThreeOps t = three_ops();
  for (OpInfo& op : t.graph.ops) op.peak_bytes = 0;  // less than the outputs that they leave
  for (Event& e : t.graph.events) {
    if (e.kind == Event::Kind::Other) e.peak = 0, e.net = 100;  // as much less
  }
  t.graph.events.pop_back();  // die c
  while (t.graph.events.back().kind != Event::Kind::Other) t.graph.events.pop_back();
  t.graph.in_flight = 2;
  const Simulation run = simulate(t.graph, plan_none(t.graph), Detail::Timeline);
  EXPECT_LT(run.peak_event, t.graph.events.size());
  EXPECT_EQ(run.peak, std::ranges::max(run.peaks));
  EXPECT_GE(run.peak, std::ranges::max(run.timeline));
}

TEST(Simulate, FetchesWhatHasMovedForItsNode) {
  const ThreeOps t = three_ops();
  const Simulation run = simulate(t.graph, with_action(plan_none(t.graph), t.a, kMove), Detail::Timeline);
  // It leaves when the program lets go of it, and is there again from its unpacking to its release.
  EXPECT_EQ(run.timeline, (std::vector<Bytes>{1100, 1300, 1300, 1700, 1700, 1600, 1600, 1600, 1600, 1600, 1400, 1500,
                                              1500, 1400, 1000}));
  EXPECT_EQ(run.after_forward, 1600);
  EXPECT_EQ(run.replayed_ops, 0);
}

TEST(Simulate, FetchesWhatAReplayReads) {
  const ThreeOps t = three_ops();
  MemoryPlan plan = with_action(plan_none(t.graph), t.a, kMove);
  plan = with_action(std::move(plan), t.b, kRecompute);
  const Simulation run = simulate(t.graph, plan, Detail::Timeline);
  EXPECT_EQ(run.replays, (std::vector<std::int32_t>{0, 1, 0})) << "a is fetched for it";
  EXPECT_EQ(run.after_forward, 1400);
  EXPECT_EQ(run.timeline.back(), 1000);
}

/// With an encoding of a tenth of its bytes, that takes a second each way.
StepGraph with_encoding(StepGraph graph, ValueId v, Codec codec) {
  graph.values[at(v)].encodings = {
      {.codec = codec, .bytes = graph.values[at(v)].bytes / 10, .encode_seconds = 1, .decode_seconds = 1}};
  return graph;
}

TEST(Simulate, LeavesAnImageForItsNodeAndNothingForReplays) {
  const ThreeOps t = three_ops();
  for (const Codec codec : {Codec::Zeros, Codec::Int4}) {
    const StepGraph graph = with_encoding(t.graph, t.a, codec);
    MemoryPlan plan = with_action(plan_none(graph), t.a, compressed(codec));
    const Simulation alone = simulate(graph, plan, Detail::Timeline);
    // As what has moved, and a tenth of it, which stays until its release.
    EXPECT_EQ(alone.timeline, (std::vector<Bytes>{1100, 1300, 1310, 1710, 1710, 1610, 1610, 1610, 1610, 1610, 1410,
                                                  1510, 1510, 1400, 1000}));
    EXPECT_EQ(alone.coding_seconds, 2);
    EXPECT_EQ(alone.replayed_ops, 0);
    plan = with_action(std::move(plan), t.b, kRecompute);
    const Simulation with_replay = simulate(graph, plan, Detail::Timeline);
    // What replays read has all its bits.
    EXPECT_EQ(with_replay.replays, (std::vector<std::int32_t>{is_lossy(codec) ? 1 : 0, 1, 0}));
    EXPECT_EQ(with_replay.timeline.back(), 1000);
    EXPECT_EQ(with_replay.seconds, graph.step_seconds + 2 + (is_lossy(codec) ? 3 : 2));
  }
}

TEST(Simulate, DecodesAnImageOnceForThoseWhoWaitForIt) {
  GraphBuilder g(0);
  const ValueId a = g.op("a", {g.leaf()}, 1000, 1);
  g.save(a);
  g.op("b", {a}, 0, 1);
  g.save(a);
  g.die(a);
  g.settle();
  g.node({a}, 10);
  g.node({a}, 10);
  const StepGraph graph = with_encoding(g.take(), a, Codec::Int4);
  const Simulation run = simulate(graph, with_action(plan_none(graph), a, compressed(Codec::Int4)), Detail::Timeline);
  EXPECT_EQ(run.coding_seconds, 2);
  EXPECT_EQ(run.after_forward, 100);
  EXPECT_EQ(run.peak, 1100 + 10);
  EXPECT_EQ(run.timeline.back(), 0);
}

TEST(Simulate, DropsWhatIsRecomputedAndReplaysItForItsNode) {
  const ThreeOps t = three_ops();
  const Simulation run = simulate(t.graph, dropping(t.graph, {t.a, t.b}), Detail::Timeline);
  // The replay of b makes a along the way, which waits for its own node.
  EXPECT_EQ(run.timeline, (std::vector<Bytes>{1100, 1300, 1300, 1700, 1700, 1600, 1400, 1400, 1700, 1700, 1500, 1500,
                                              1500, 1400, 1000}));
  EXPECT_EQ(run.after_forward, 1400);
  EXPECT_EQ(run.peak, 1000 + 400 + 100 + 200 + 50);
  EXPECT_EQ(run.replayed_ops, 2);
  EXPECT_EQ(run.seconds, t.graph.step_seconds + 3);
}

TEST(Simulate, NamesTheOperatorOfThePeak) {
  GraphBuilder g;
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("small", {leaf}, 100);
  g.op("big", {a}, 200, 1, 5000);
  const StepGraph graph = g.take();
  const Simulation run = simulate(graph, plan_none(graph));
  EXPECT_EQ(run.peak, 100 + 200 + 5000);
  EXPECT_EQ(run.peak_op, 1);
  EXPECT_EQ(run.peak_event, 1U);
}

TEST(Simulate, CountsAStorageOnceWhenAnOperatorWritesInPlace) {
  GraphBuilder g;
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 100);
  const ValueId b = g.in_place("relu_", {a}, a);
  g.save(b);
  g.die(b);
  g.settle();
  g.node({b}, 0);
  const StepGraph graph = g.take();
  const Simulation none = simulate(graph, plan_none(graph), Detail::Timeline);
  EXPECT_EQ(none.timeline, (std::vector<Bytes>{100, 100, 100, 100, 100, 100, 100, 0}));
  EXPECT_EQ(none.peak, 100);
  // The replay takes a's storage over: never two.
  const Simulation run = simulate(graph, dropping(graph, {b}), Detail::Timeline);
  EXPECT_EQ(run.timeline, (std::vector<Bytes>{100, 100, 100, 0, 0, 100, 100, 0}));
  EXPECT_EQ(run.peak, 100);
  EXPECT_EQ(run.replayed_ops, 2);
}

TEST(Simulate, CopiesWhatAReplayOverwritesButStillNeeds) {
  GraphBuilder g;
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 100);
  g.save(a);
  const ValueId b = g.in_place("relu_", {a}, a);
  g.save(b);
  g.die(b);
  g.settle();
  g.node({b}, 7);
  g.node({a}, 0);
  const StepGraph graph = g.take();
  const Simulation run = simulate(graph, dropping(graph, {a, b}), Detail::Timeline);
  EXPECT_EQ(run.peak, 207);
  EXPECT_EQ(run.timeline.back(), 0);
  EXPECT_EQ(run.replayed_ops, 2);
}

TEST(Simulate, CountsTheRoomForWhatAReplayReplacesWhole) {
  GraphBuilder g;
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("empty", {}, 100);
  const ValueId noise = g.in_place("normal_", {leaf}, a);
  g.save(noise);
  g.die(noise);
  g.settle();
  g.other(0, 1000);
  g.unpack(noise);
  g.release(noise);
  const StepGraph graph = g.take();
  const Simulation run = simulate(graph, dropping(graph, {noise}), Detail::Timeline);
  EXPECT_EQ(run.replayed_ops, 1);  // the values of empty are not read
  EXPECT_EQ(run.peak, 1100);
  EXPECT_EQ(run.timeline.back(), 1000);
}

TEST(Simulate, GivesACopyBackWhoseResultIsThereAlready) {
  GraphBuilder g;
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 100);
  g.save(a);
  g.begin_op("norm", {a}, 1, 0);
  const ValueId updated = g.written(a);
  const ValueId other = g.fresh(30);
  g.save(updated);
  g.save(other);
  g.die(updated);
  g.die(other);
  g.settle();
  g.node({other}, 0);
  g.node({updated, a}, 0);
  const StepGraph graph = g.take();
  // The replay of `other` makes a, which waits for its node, writes a copy of it, and has no use for the copy.
  const Simulation run = simulate(graph, dropping(graph, {a, other}), Detail::Timeline);
  EXPECT_EQ(run.replayed_ops, 2);
  EXPECT_EQ(run.peak, 100 + 100 + 100 + 30);
  EXPECT_EQ(run.timeline.back(), 0);
}

TEST(Simulate, HoldsASecondCopyWhileTheProgramStillHasTheFirst) {
  GraphBuilder g;
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 100);
  g.save(a);
  g.settle();
  g.unpack(a);
  g.release(a);
  g.die(a);
  const StepGraph graph = g.take();
  const Simulation run = simulate(graph, dropping(graph, {a}), Detail::Timeline);
  EXPECT_EQ(run.timeline, (std::vector<Bytes>{100, 100, 100, 200, 100, 0}));
}

TEST(Simulate, HoldsWhatAPassInsideWasGivenUntilNoSavedTensorIsLeft) {
  GraphBuilder g;
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 100);
  g.save(a);
  g.save(a);
  g.die(a);
  g.unpack(a);
  g.unpack(a);
  g.settle();
  for (int node = 0; node < 2; ++node) {
    g.unpack(a);
    g.release(a);
  }
  const StepGraph graph = g.take();
  const Simulation run = simulate(graph, dropping(graph, {a}), Detail::Timeline);
  EXPECT_EQ(run.timeline, (std::vector<Bytes>{100, 100, 100, 0, 100, 100, 100, 200, 200, 200, 0}));
  EXPECT_EQ(run.replayed_ops, 2);
}

TEST(Simulate, GivesAnImageBackThatAPassInsideHasUsedUp) {
  GraphBuilder g;
  const ValueId a = g.op("a", {g.leaf()}, 100);
  g.save(a);
  g.die(a);
  g.unpack(a);
  g.release(a);
  g.settle();
  const StepGraph graph = with_encoding(g.take(), a, Codec::Int4);
  const MemoryPlan plan = with_action(plan_none(graph), a, compressed(Codec::Int4));
  EXPECT_EQ(simulate(graph, plan, Detail::Timeline).timeline.back(), 0);
}

TEST(Simulate, EndsWithNothingButStaticBytesOnAChain) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 3});
  for (const MemoryPlan& plan : {plan_none(graph), plan_every_block(graph), plan_chen_sqrt(graph)}) {
    EXPECT_EQ(simulate(graph, plan, Detail::Timeline).timeline.back(), graph.static_bytes) << plan.strategy;
  }
}

TEST(Simulate, AgreesWithTheInterpreterOnRandomStepsAndPlans) {
  int replays = 0, in_place = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const StepGraph graph = synthetic::random_graph(seed, 5 + static_cast<int>(seed % 40));
    const MemoryPlan plan = synthetic::random_plan(seed + 1'000'000, graph);
    synthetic::StepInterpreter expected(graph, plan);
    expected.run();
    const Simulation run = simulate(graph, plan, Detail::Timeline);
    ASSERT_EQ(run.timeline, expected.timeline);
    ASSERT_EQ(run.peak, expected.peak);
    ASSERT_EQ(run.replayed_ops, expected.replayed_ops);
    ASSERT_NEAR(run.seconds, graph.step_seconds + expected.seconds, 1e-9);
    ASSERT_EQ(run.timeline.back(), graph.static_bytes);
    replays += static_cast<int>(run.replayed_ops);
    for (OpId op = 0; op < graph.flow.ops(); ++op) in_place += graph.flow.outputs(op)[0].overwrites != kNoValue;
  }
  // Not vacuous.
  EXPECT_GT(replays, 3000);
  EXPECT_GT(in_place, 500);
}

TEST(Predicted, FillsInPeakAndSeconds) {
  const ThreeOps t = three_ops();
  MemoryPlan plan = dropping(t.graph, {t.a, t.b});
  plan.predicted_peak = 0;
  const MemoryPlan filled = predicted(t.graph, plan);
  EXPECT_EQ(filled.predicted_peak, 1750);
  EXPECT_EQ(filled.predicted_seconds, t.graph.step_seconds + 3);
  EXPECT_EQ(filled.actions, plan.actions);
}

}  // namespace
}  // namespace snug::plan
