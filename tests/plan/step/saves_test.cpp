// Who may have saved a value, from the order of a recording.
#include "snug/plan/step/saves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;

TEST(Saves, StandBetweenTheOperatorsThatMayHaveMadeThem) {
  synthetic::GraphBuilder g(0);
  const ValueId leaf = g.leaf();
  g.save(leaf);  // by a, which reads it
  const ValueId a = g.op("a", {leaf}, 1);
  g.save(a);  // by b, which reads it twice, or by a itself
  g.save(a);
  const ValueId b = g.op("b", {a, a}, 1);
  g.save(b);  // by nobody else
  g.save(a);  // b again: a function by hand
  const ValueId c = g.op("c", {leaf}, 1);
  g.save(a);  // by none of them
  const StepGraph graph = g.take();
  EXPECT_THAT(saves_between_operators(graph.events),
              ElementsAre(SavedBetween{leaf, 1, kNoOp, 0}, SavedBetween{a, 2, 0, 1}, SavedBetween{a, 1, 1, 2},
                          SavedBetween{b, 1, 1, 2}, SavedBetween{a, 1, 2, kNoOp}));
  EXPECT_EQ(times_read(graph.flow, 1, a), 2);
  EXPECT_EQ(times_read(graph.flow, 2, a), 0);
  EXPECT_EQ(times_read(graph.flow, kNoOp, a), 0);
  EXPECT_TRUE(makes(graph.flow, 2, c));
  EXPECT_FALSE(makes(graph.flow, 2, a));
  EXPECT_FALSE(makes(graph.flow, kNoOp, a));
}

}  // namespace
}  // namespace snug::plan
