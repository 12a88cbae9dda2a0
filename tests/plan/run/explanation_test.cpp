#include "snug/plan/run/explanation.h"

#include <gtest/gtest.h>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

TEST(Explain, TellsWhatIsKeptMovedAndRecomputed) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 4});
  MemoryPlan plan = plan_every_block(graph);
  Bytes kept = 0, moved = 0, recomputed = 0;
  bool move = false;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (!graph.values[at(v)].saved || graph.flow.is_leaf(v)) continue;
    if (plan.keeps(v) && std::exchange(move, !move)) plan.actions[at(v)] = kMove;
    (plan.keeps(v) ? kept : plan.action(v) == kMove ? moved : recomputed) += graph.values[at(v)].bytes;
  }
  ASSERT_GT(moved, 0);
  const Explanation why = explain(graph, plan);
  EXPECT_EQ(why.all.kept, kept);
  EXPECT_EQ(why.all.moved, moved);
  EXPECT_EQ(why.all.recomputed, recomputed);
  Bytes of_pieces = 0;
  for (const Share& piece : why.pieces) of_pieces += piece.kept + piece.moved + piece.recomputed;
  EXPECT_EQ(of_pieces, kept + moved + recomputed);
}

TEST(Explain, CountsWhatIsOnTheDeviceThatThePlanIsFor) {
  StepGraph graph = synthetic::gpt_like({.blocks = 3});
  const Bytes all = explain(graph, plan_none(graph)).all.kept;
  graph.devices.emplace_back("cuda:0");
  Bytes elsewhere = 0;
  for (ValueId v = 0; v < graph.flow.values(); v += 2) {
    graph.values[at(v)].device = 1;
    if (graph.values[at(v)].saved && !graph.flow.is_leaf(v)) elsewhere += graph.values[at(v)].bytes;
  }
  ASSERT_GT(elsewhere, 0);
  EXPECT_EQ(explain(graph, plan_none(graph)).all.kept, all - elsewhere);
}

TEST(Explain, NamesTheModuleOfAPieceWhereItsOperatorsAgree) {
  StepGraph graph = synthetic::gpt_like({.blocks = 3});
  std::vector<Share> pieces = explain(graph, plan_none(graph)).pieces;
  EXPECT_EQ(pieces[1].module, "");
  for (OpId op = pieces[1].begin; op < pieces[1].end; ++op) {
    graph.ops[at(op)].module = op % 2 == 0 ? "model.layers.1.norm" : "model.layers.1.mlp.up";
  }
  for (OpId op = pieces[2].begin; op < pieces[2].end; ++op) {
    graph.ops[at(op)].module = op % 2 == 0 ? "model.layers.1" : "model.layers.10";
  }
  pieces = explain(graph, plan_none(graph)).pieces;
  EXPECT_EQ(pieces[1].module, "model.layers.1");
  EXPECT_EQ(pieces[2].module, "model.layers");
}

TEST(Explain, LeavesOutNothingBetweenRunsOfBlocks) {
  synthetic::GraphBuilder g;
  ValueId v = g.leaf();
  const auto run = [&](const char* name) { g.save(v = g.op(name, {v}, 1_MiB)); };
  for (int i = 0; i < 4; ++i) {
    for (const char* name : {"norm", "attend"}) run(name);
  }
  run("shift");
  for (int i = 0; i < 4; ++i) {
    for (const char* name : {"norm", "attend", "cross"}) run(name);
  }
  const Explanation why = explain(g.graph(), plan_none(g.graph()));
  EXPECT_EQ(why.pieces.size(), 9U);
  EXPECT_EQ(why.pieces[4].name, "between blocks");
  EXPECT_EQ(why.all.kept, g.graph().flow.ops() * 1_MiB);
}

TEST(Explain, TellsWhenThePeakComes) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 4});
  for (const MemoryPlan& plan : {plan_none(graph), plan_every_block(graph)}) {
    const Simulation run = simulate(graph, plan, Detail::Timeline);
    EXPECT_EQ(explain(graph, plan).peak_seconds, run.times[run.peak_event]);
    EXPECT_NEAR(run.times.back(), run.seconds, 1e-12 * run.seconds) << "sums in another order";
  }
}

}  // namespace
}  // namespace snug::plan
