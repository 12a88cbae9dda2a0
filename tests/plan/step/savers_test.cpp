// Who may have saved a value, from the order of a recording.
#include "snug/plan/step/savers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;

TEST(PossibleSavers, ReadInFrontOfTheirOperatorOrMadeBehindIt) {
  synthetic::GraphBuilder g(0);
  const ValueId a = g.op("a", {g.leaf()}, 1);
  g.save(a);  // by b, which reads it, or by a itself
  const ValueId b = g.op("b", {a}, 1);
  g.save(b);  // by nobody else
  g.save(a);  // b again: a function by hand
  const ValueId c = g.op("c", {g.leaf()}, 1);
  g.save(a);  // by none of them
  g.save(c);
  const StepGraph graph = g.take();
  EXPECT_THAT(possible_savers(graph.flow, graph.events),
              ElementsAre(Saver{a, 1, Saver::By::Reading, false}, Saver{a, 0, Saver::By::Making, false},
                          Saver{b, 1, Saver::By::Making, true}, Saver{a, 1, Saver::By::Reading, true},
                          Saver{c, 2, Saver::By::Making, true}));
}

}  // namespace
}  // namespace snug::plan
