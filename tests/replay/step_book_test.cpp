// The steps that a session knows: when they are planned again, and what is never refused.
#include "snug/replay/step_book.h"

#include <gtest/gtest.h>

#include <string>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"
#include "snug/plan/does_not_fit.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::replay {
namespace {

using plan::Budget;
using plan::StepGraph;
using plan::synthetic::GraphBuilder;

/// A chain of operators, each with an output that is saved.
StepGraph chain_step(int length, Bytes each, Bytes before) {
  GraphBuilder b(before);
  std::vector<plan::ValueId> saved;
  plan::ValueId last = b.leaf();
  for (int i = 0; i < length; ++i) {
    const plan::ValueId next = b.op("f" + std::to_string(length), {last}, each);
    if (i > 0) b.die(last);
    b.save(next);
    saved.push_back(next);
    last = next;
  }
  b.die(last);
  b.settle();
  for (int i = length - 1; i >= 0; --i) b.node({saved[static_cast<std::size_t>(i)]}, each);
  return b.take();
}

memory::Stats allocated(Bytes bytes) {
  memory::Stats stats;
  stats.allocated = bytes;
  return stats;
}

constexpr Budget kBudget{.device = 40_MiB, .reserve = 1_MiB};

StepBook book_with(const StepGraph& graph, Bytes state_to_come = 0) {
  return {graph, plan::Planner(graph, "optimal"), kBudget, state_to_come};
}

TEST(StepBook, AStepThatOnlyEvictionCarriesIsNeverRefused) {
  const StepGraph small = chain_step(8, 1_MiB, 10_MiB), huge = chain_step(4, 20_MiB, 10_MiB);
  StepBook book = book_with(small);
  ASSERT_THROW(static_cast<void>(plan::make_plan(huge, "optimal", kBudget)), DoesNotFit);
  book.add(huge, /*accumulates=*/false);
  EXPECT_EQ(book.size(), 2U);
  // Some state comes, for which there is room in the small step: the huge one ran last, and is expected again.
  EXPECT_NO_THROW(book.begin(allocated(16_MiB), /*gradients=*/0, false));
  EXPECT_NO_THROW(book.begin(allocated(22_MiB), /*gradients=*/0, false));
  EXPECT_EQ(book.steps(false).size(), 2U);
  // What is there leaves no room for any step: then the one that fitted says so.
  book.ran(book.steps(false).back().graph.get());
  EXPECT_EQ(book.plan().strategy, "optimal");
  EXPECT_THROW(book.begin(allocated(39_MiB), /*gradients=*/0, false), DoesNotFit);
}

TEST(StepBook, PlansOnlyTheExpectedStepAgain) {
  const StepGraph first = chain_step(8, 1_MiB, 10_MiB), second = chain_step(12, 1_MiB, 10_MiB);
  StepBook book = book_with(first);
  book.add(second, false);
  book.begin(allocated(35_MiB), /*gradients=*/0, false);
  const auto steps = book.steps(false);
  EXPECT_EQ(steps[0].graph->static_bytes, 35_MiB);
  EXPECT_EQ(steps[1].graph->static_bytes, 10_MiB);  // until it runs
  book.ran(steps[1].graph.get());
  book.begin(allocated(35_MiB), /*gradients=*/0, false);
  EXPECT_EQ(book.graph().static_bytes, 35_MiB);
}

TEST(StepBook, StateThatWasExpectedIsNoReasonToPlanAgain) {
  StepGraph graph = chain_step(8, 1_MiB, 20_MiB);  // with 8 MiB of state that is yet to be made
  StepBook book = book_with(graph, 8_MiB);
  const plan::StepGraph* planned = &book.graph();
  book.begin(allocated(12_MiB), /*gradients=*/0, false);
  EXPECT_EQ(&book.graph(), planned);
  book.begin(allocated(20_MiB), /*gradients=*/0, false);  // it has come
  EXPECT_EQ(&book.graph(), planned);
  book.begin(allocated(12_MiB), /*gradients=*/0, false);  // and gone: there is room for a faster plan
  EXPECT_NE(&book.graph(), planned);
  EXPECT_EQ(book.graph().static_bytes, 12_MiB);
}

TEST(StepBook, StateThatComesBeforeAnUnknownStepIsCountedOnce) {
  StepBook book = book_with(chain_step(8, 1_MiB, 20_MiB), /*state_to_come=*/8_MiB);
  book.begin(allocated(12_MiB), 0, /*accumulates=*/false);
  // The state is there, and 2 MiB of gradients; no step with gradients is known.
  book.begin(allocated(22_MiB), 2_MiB, /*accumulates=*/true);
  book.add(chain_step(8, 1_MiB, 22_MiB), /*accumulates=*/true);
  EXPECT_EQ(book.graph().static_bytes, 22_MiB);
}

}  // namespace
}  // namespace snug::replay
