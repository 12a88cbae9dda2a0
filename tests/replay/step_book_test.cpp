// The steps that a session knows: when they are planned again, and what is never refused.
#include "snug/replay/step_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

constexpr Budget kBudget{.limit = 40_MiB, .reserve = 1_MiB};

StepBook book_with(const StepGraph& graph, Bytes state_to_come = 0,
                   const std::shared_ptr<Agreement>& agreement = alone()) {
  RecordedStep step;
  step.graph = graph;
  step.passing.front().state_to_come = state_to_come;
  std::vector<PlannedStep> kinds;
  kinds.push_back({step, plan::Planner(graph, "optimal")});
  return {std::move(kinds), kBudget, {}, agreement};
}

RecordedStep recorded(StepGraph graph, StepKind kind = StepKind::First) {
  RecordedStep step;
  step.graph = std::move(graph);
  step.kind = kind;
  return step;
}

/// A group whose others vote as they are told, and then always Yes.
class Others final : public Agreement {
 public:
  explicit Others(std::deque<Vote> votes) : votes_(std::move(votes)) {}
  std::vector<Vote> votes(Vote mine) override {
    ++asked;
    Vote theirs = Vote::Yes;
    if (!votes_.empty()) {
      theirs = votes_.front();
      votes_.pop_front();
    }
    return {mine, theirs};
  }
  int asked = 0;

 private:
  std::deque<Vote> votes_;
};

TEST(StepBook, AStepThatOnlyEvictionCarriesIsNeverRefused) {
  const StepGraph small = chain_step(8, 1_MiB, 10_MiB), huge = chain_step(4, 20_MiB, 10_MiB);
  StepBook book = book_with(small);
  ASSERT_THROW(static_cast<void>(plan::make_plan(huge, "optimal", kBudget)), DoesNotFit);
  book.add(huge, StepKind::First, StepBook::Search::InThisThread);
  EXPECT_EQ(book.size(), 2U);
  EXPECT_FALSE(book.fits());
  EXPECT_EQ(book.plan().budget, kBudget.limit);
  EXPECT_EQ(book.plan().unplanned_peak, book.plan().predicted_peak);
  EXPECT_GT(book.plan().predicted_peak, kBudget.limit);
  // Some state comes, for which there is room in the small step: the huge one ran last, and is expected again.
  EXPECT_NO_THROW(book.begin({{allocated(16_MiB)}}, StepKind::First));
  EXPECT_NO_THROW(book.begin({{allocated(22_MiB)}}, StepKind::First));
  EXPECT_EQ(book.steps(StepKind::First).size(), 2U);
  // What is there leaves no room for any step: then the one that fitted says so.
  book.ran(book.steps(StepKind::First).back().graph.get());
  EXPECT_EQ(book.plan().strategy, "optimal");
  EXPECT_TRUE(book.fits());
  EXPECT_THROW(book.begin({{allocated(39_MiB)}}, StepKind::First), DoesNotFit);
}

TEST(StepBook, AStepThatNoPlanFitsAnyMoreRefusesNoOther) {
  const StepGraph small = chain_step(8, 1_MiB, 10_MiB), large = chain_step(4, 8_MiB, 10_MiB);
  StepBook book = book_with(small);
  book.add(large, StepKind::First, StepBook::Search::InThisThread);
  ASSERT_TRUE(book.fits());
  // An average of the weights, say, came: the large one ran last, and the small one may come.
  EXPECT_NO_THROW(book.begin({{allocated(26_MiB)}}, StepKind::First));
  EXPECT_FALSE(book.fits()) << "evictions would carry it";
  EXPECT_LE(book.predicted_peak(), kBudget.limit);
  EXPECT_NO_THROW(book.begin({{allocated(26_MiB)}}, StepKind::First));
  book.begin({{allocated(10_MiB)}}, StepKind::First);
  EXPECT_TRUE(book.fits()) << "there is room again";
  EXPECT_THROW(book.begin({{allocated(39_MiB)}}, StepKind::First), DoesNotFit) << "for neither";
}

TEST(StepBook, AnotherStepHasTheUpdateOfItsKind) {
  StepGraph later = chain_step(8, 1_MiB, 10_MiB);
  later.end_with_update({2_MiB}, 0.5);
  std::vector<PlannedStep> kinds;
  for (const auto& [graph, kind] : {std::pair(later, StepKind::Later), {chain_step(7, 1_MiB, 10_MiB), StepKind::First}})
    kinds.push_back({recorded(graph, kind), plan::Planner(graph, "optimal")});
  StepBook book(std::move(kinds), kBudget, {});
  book.add(chain_step(5, 1_MiB, 10_MiB), StepKind::First, StepBook::Search::InThisThread);  // behind a later one
  EXPECT_EQ(book.graph().update_bytes, 0);
  book.add(chain_step(6, 1_MiB, 10_MiB), StepKind::Later, StepBook::Search::InThisThread);  // behind a first one
  EXPECT_EQ(book.graph().update_bytes, 2_MiB);
}

TEST(StepBook, PredictsThePeakOfARunWithItsEvaluation) {
  std::vector<PlannedStep> kinds;
  for (const auto& [graph, kind] :
       {std::pair(chain_step(8, 1_MiB, 10_MiB), StepKind::First), {chain_step(3, 6_MiB, 10_MiB), StepKind::Evaluation}})
    kinds.push_back({recorded(graph, kind), plan::Planner(graph, "none")});
  const std::vector<plan::MemoryPlan> plans = plan_all(kinds, kBudget);
  ASSERT_GT(plans[1].predicted_peak, plans[0].predicted_peak);
  const StepBook book(std::move(kinds), kBudget, {});
  EXPECT_EQ(book.plan().predicted_peak, plans[0].predicted_peak);
  EXPECT_EQ(book.predicted_peak(), plans[1].predicted_peak);
  EXPECT_EQ(highest_peak(plans), plans[1].predicted_peak);
}

TEST(StepBook, ForgetsStepsOnlyWhereTheyAreLarge) {
  const StepGraph small = chain_step(8, 1_KiB, 10_MiB);
  std::vector<PlannedStep> kinds;
  kinds.push_back({recorded(small), plan::Planner(small, "none")});
  StepBook book(std::move(kinds), kBudget, {});
  for (int length = 9; length < 109; ++length)
    book.add(chain_step(length, 1_KiB, 10_MiB), StepKind::First, StepBook::Search::InThisThread);
  EXPECT_EQ(book.size(), 101U);
  StepGraph large = chain_step(8, 1_KiB, 10_MiB);
  large.ops.resize(250'000, large.ops.front());
  book.add(large, StepKind::First, StepBook::Search::InThisThread);
  EXPECT_EQ(book.size(), 64U) << "so many stay, however large";
  EXPECT_EQ(book.graph().ops.size(), large.ops.size()) << "and those that ran last";
}

TEST(StepBook, PlansOnlyTheExpectedStepAgain) {
  const StepGraph first = chain_step(8, 1_MiB, 10_MiB), second = chain_step(12, 1_MiB, 10_MiB);
  StepBook book = book_with(first);
  book.add(second, StepKind::First, StepBook::Search::InThisThread);
  book.begin({{allocated(35_MiB)}}, StepKind::First);
  const auto steps = book.steps(StepKind::First);
  EXPECT_EQ(steps[0].graph->static_bytes, 35_MiB);
  EXPECT_EQ(steps[1].graph->static_bytes, 10_MiB);  // until it runs
  book.ran(steps[1].graph.get());
  book.begin({{allocated(35_MiB)}}, StepKind::First);
  EXPECT_EQ(book.graph().static_bytes, 35_MiB);
}

TEST(StepBook, StateThatWasExpectedIsNoReasonToPlanAgain) {
  StepGraph graph = chain_step(8, 1_MiB, 20_MiB);  // with 8 MiB of state that is yet to be made
  StepBook book = book_with(graph, 8_MiB);
  const plan::StepGraph* planned = &book.graph();
  book.begin({{allocated(12_MiB)}}, StepKind::First);
  EXPECT_EQ(&book.graph(), planned);
  book.begin({{allocated(20_MiB)}}, StepKind::First);  // it has come
  EXPECT_EQ(&book.graph(), planned);
  book.begin({{allocated(12_MiB)}}, StepKind::First);  // and gone: there is room for a faster plan
  EXPECT_NE(&book.graph(), planned);
  EXPECT_EQ(book.graph().static_bytes, 12_MiB);
}

TEST(StepBook, WhatComesAndGoesBesideTheStepsIsNoReasonToPlanAgain) {
  RecordedStep step = recorded(chain_step(8, 1_MiB, 20_MiB));  // with 8 MiB of batches, say
  step.passing.front().beside = 8_MiB;
  std::vector<PlannedStep> kinds;
  kinds.push_back({step, plan::Planner(step.graph, "optimal")});
  StepBook book(std::move(kinds), kBudget);
  const plan::StepGraph* planned = &book.graph();
  for (const Bytes there : {12_MiB, 20_MiB, 15_MiB, 12_MiB}) {
    book.begin({{allocated(there)}}, StepKind::First);
    EXPECT_EQ(&book.graph(), planned) << there;
  }
  book.add(chain_step(4, 1_MiB, 12_MiB), StepKind::First, StepBook::Search::InThisThread);
  EXPECT_EQ(book.graph().static_bytes, 20_MiB) << "another step that runs while they are away has them too";
  EXPECT_EQ(book.graph().static_by_tag[static_cast<std::size_t>(memory::Tag::Staging)], 8_MiB);
  book.ran(planned);
  book.begin({{allocated(9_MiB)}}, StepKind::First);  // what is less than that is gone
  EXPECT_EQ(book.graph().static_bytes, 17_MiB);
}

TEST(StepBook, StateThatComesBeforeAnUnknownStepIsCountedOnce) {
  StepBook book = book_with(chain_step(8, 1_MiB, 20_MiB), /*state_to_come=*/8_MiB);
  book.begin({{allocated(12_MiB), 0}}, StepKind::First);
  // The state is there, and 2 MiB of gradients; no step with gradients is known.
  book.begin({{allocated(22_MiB), 2_MiB}}, StepKind::Later);
  book.add(chain_step(8, 1_MiB, 22_MiB), StepKind::Later, StepBook::Search::InThisThread);
  EXPECT_EQ(book.graph().static_bytes, 22_MiB);
}

TEST(StepBook, AllKindsHavePlansFromTheStart) {
  std::vector<RecordedStep> kinds;
  kinds.push_back(recorded(chain_step(8, 1_MiB, 10_MiB)));
  kinds.push_back(recorded(chain_step(12, 1_MiB, 10_MiB), StepKind::Later));
  kinds.push_back(recorded(chain_step(2, 1_MiB, 10_MiB), StepKind::Evaluation));
  const StepBook book(planned(std::move(kinds), "optimal"), kBudget);
  EXPECT_TRUE(book.expects(StepKind::First));
  EXPECT_TRUE(book.expects(StepKind::Later));
  EXPECT_EQ(book.steps(StepKind::Later).size(), 1U);
  EXPECT_EQ(book.size(), 2U) << "nobody follows the plan of a pass that has nothing to decide";
}

TEST(StepBook, TheHighestFloorOfAllKindsIsTheOneThatIsNamed) {
  std::vector<RecordedStep> kinds;
  for (const Bytes each : {1_MiB, 25_MiB, 20_MiB}) kinds.push_back(recorded(chain_step(4, each, 10_MiB)));
  const std::vector<PlannedStep> all = planned(std::move(kinds), "optimal");
  ASSERT_NO_THROW((void)all[0].planner.plan(all[0].step.graph, kBudget));
  const Bytes highest = kBudget.floor_for(all[1].planner.floor(all[1].step.graph));
  ASSERT_GT(highest, kBudget.floor_for(all[2].planner.floor(all[2].step.graph)));
  try {
    const StepBook book(all, kBudget);
    FAIL() << "no error";
  } catch (const DoesNotFit& error) {
    EXPECT_EQ(error.floor().floor, highest);
  }
}

TEST(StepBook, WhatUpdatesMakeIsThereInEvaluationToo) {
  std::vector<RecordedStep> kinds;
  kinds.push_back(recorded(chain_step(4, 1_MiB, 20_MiB)));
  kinds.front().passing.front().state_to_come = 8_MiB;
  kinds.push_back(recorded(chain_step(4, 4_MiB, 12_MiB), StepKind::Evaluation));
  const Bytes without = kBudget.floor_for(plan::Planner(kinds.back().graph, "none").floor(kinds.back().graph));
  ASSERT_LT(without, kBudget.limit);
  const std::vector<PlannedStep> all = planned(std::move(kinds), "optimal");
  EXPECT_EQ(all.back().step.graph.static_bytes, 20_MiB);
  EXPECT_THROW(StepBook(all, kBudget), DoesNotFit);
  EXPECT_EQ(kBudget.floor_for(all.back().planner.floor(all.back().step.graph)), without + 8_MiB);
}

TEST(StepBook, AStepThatGoesBackwardComesFirst) {
  std::vector<RecordedStep> kinds;
  kinds.push_back(recorded(chain_step(2, 1_MiB, 10_MiB), StepKind::Evaluation));
  EXPECT_THROW(StepBook(planned(std::move(kinds), "none"), kBudget), UsageError);
}

TEST(StepBook, PlansAgainWhereAnotherProcessDoes) {
  // Made; nothing to do; the other one plans again, and all have a plan.
  const auto others = std::make_shared<Others>(std::deque{Vote::Yes, Vote::Yes, Vote::No, Vote::Yes});
  StepBook book = book_with(chain_step(8, 1_MiB, 10_MiB), 0, others);
  book.begin({{allocated(11_MiB)}}, StepKind::First);
  EXPECT_EQ(book.graph().static_bytes, 10_MiB);
  book.begin({{allocated(11_MiB)}}, StepKind::First);
  EXPECT_EQ(book.graph().static_bytes, 11_MiB);
  EXPECT_EQ(others->asked, 4);
}

TEST(StepBook, WhatFitsNoMoreInAnotherProcessIsRefusedHere) {
  const auto others = std::make_shared<Others>(std::deque{Vote::Yes, Vote::No, Vote::No});
  StepBook book = book_with(chain_step(8, 1_MiB, 10_MiB), 0, others);
  EXPECT_THAT([&] { book.begin({{allocated(11_MiB)}}, StepKind::First); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("another process")));
  EXPECT_NO_THROW(book.begin({{allocated(11_MiB)}}, StepKind::First));
}

TEST(StepBook, WithoutABudgetVotesWithThoseThatHaveOne) {
  // Made; nothing to do; the others plan again, which they tell twice.
  const auto others = std::make_shared<Others>(std::deque{Vote::Yes, Vote::Yes, Vote::No, Vote::Yes});
  std::vector<RecordedStep> kinds;
  kinds.push_back(recorded(chain_step(8, 1_MiB, 10_MiB)));
  StepBook book(planned(std::move(kinds), "optimal"), std::nullopt, {}, others);
  EXPECT_EQ(others->asked, 1);
  book.begin({{allocated(10_MiB)}}, StepKind::First);
  EXPECT_EQ(others->asked, 2);
  book.begin({{allocated(39_MiB)}}, StepKind::First);
  EXPECT_EQ(others->asked, 4);
  EXPECT_EQ(book.graph().static_bytes, 10_MiB) << "its own plan stands";
}

TEST(StepBook, IsAskedForEachStepOnceWhileItStands) {
  const auto others = std::make_shared<Others>(std::deque<Vote>{});
  StepBook book = book_with(chain_step(8, 1_MiB, 10_MiB), 0, others);
  book.begin({{allocated(10_MiB)}}, StepKind::First);
  book.begin({{allocated(10_MiB)}}, StepKind::Later);  // which is not known
  EXPECT_EQ(others->asked, 3);
  book.begin({{allocated(39_MiB)}}, StepKind::Later);
  EXPECT_EQ(others->asked, 4);
}

}  // namespace
}  // namespace snug::replay
