#include "snug/plan/step/legal_actions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "snug/plan/run/presets.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;

TEST(Decide, WhatMustBeGoesBeforeWhatIsPlanned) {
  for (const Action& planned : {kKeep, kMove, kRecompute}) {
    EXPECT_EQ(decide(Must::Nothing, planned), planned);
    EXPECT_EQ(decide(Must::Keep, planned), kKeep);
    EXPECT_EQ(decide(Must::Recompute, planned), kRecompute);
  }
}

TEST(LegalActions, AreOneWhereThereIsNoChoice) {
  synthetic::GraphBuilder g(0);
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 100, 1);
  const ValueId b = g.op("b", {a}, 100, 1);
  const ValueId c = g.op("c", {b}, 100, 1);
  g.settle();
  StepGraph graph = g.take();
  graph.values[at(b)].must = Must::Keep;
  graph.values[at(c)].must = Must::Recompute;
  EXPECT_THAT(legal_actions(graph, leaf), ElementsAre(kKeep));
  EXPECT_THAT(legal_actions(graph, a), ElementsAre(kKeep, kRecompute));
  EXPECT_THAT(legal_actions(graph, b), ElementsAre(kKeep));
  EXPECT_THAT(legal_actions(graph, c), ElementsAre(kRecompute));
  EXPECT_TRUE(has_choice(graph, a));
  EXPECT_FALSE(has_choice(graph, b));
}

TEST(LegalActions, HaveACodecOfEachKindForWhatIsSaved) {
  synthetic::GraphBuilder g(0);
  const ValueId a = g.op("a", {g.leaf()}, 100, 1);
  const ValueId b = g.op("b", {a}, 100, 1);
  g.save(a);
  g.settle();
  g.node({a}, 10);
  StepGraph graph = g.take();
  for (const ValueId v : {a, b}) {
    graph.values[at(v)].encodings = {{.codec = Codec::Zeros, .bytes = 50, .encode_seconds = 1, .decode_seconds = 1},
                                     {.codec = Codec::Int4, .bytes = 15, .encode_seconds = 1, .decode_seconds = 1}};
  }
  graph.moves.disk.emplace();
  EXPECT_THAT(legal_actions(graph, a),
              ElementsAre(kKeep, kRecompute, compressed(Codec::Zeros), compressed(Codec::Int4), kMoveToDisk));
  EXPECT_THAT(legal_actions(graph, b), ElementsAre(kKeep, kRecompute)) << "nobody saves it";
  EXPECT_EQ(bytes_held(graph, a, compressed(Codec::Zeros)), 50);
  EXPECT_EQ(bytes_held(graph, a, compressed(Codec::Int4)), 15);
  EXPECT_EQ(decided(graph, with_action(plan_none(graph), a, compressed(Codec::Int8)), a), kKeep) << "it has none";
}

TEST(OtherActions, LeaveOutTheOneThatThePlanHas) {
  const StepGraph graph = synthetic::residual_net();
  const MemoryPlan plan = plan_none(graph);
  const ValueId value = graph.flow.outputs(0).front().value;
  ASSERT_TRUE(plan.keeps(value));
  EXPECT_THAT(other_actions(graph, plan, value), ElementsAre(kRecompute));
  EXPECT_THAT(other_actions(graph, with_action(plan, value, kRecompute), value), ElementsAre(kKeep));
  EXPECT_THAT(other_actions(graph, with_action(plan, value, kMove), value), ElementsAre(kKeep, kRecompute));
}

TEST(Decided, IsWhatThePlanSaysUnlessTheGraphSaysWhatMustBe) {
  StepGraph graph = synthetic::residual_net();
  MemoryPlan plan = plan_none(graph);
  const ValueId value = graph.flow.outputs(0).front().value;
  EXPECT_EQ(decided(graph, plan, value), kKeep);
  graph.values[at(value)].must = Must::Recompute;
  EXPECT_EQ(decided(graph, plan, value), kRecompute);
  plan.actions.clear();
  graph.values[at(value)].must = Must::Nothing;
  EXPECT_EQ(decided(graph, plan, value), kRecompute) << "of a value that the plan does not know";
}

}  // namespace
}  // namespace snug::plan
