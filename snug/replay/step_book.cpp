#include "snug/replay/step_book.h"

#include <algorithm>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"
#include "snug/plan/does_not_fit.h"

namespace snug::replay {
namespace {

// More than that is forgotten, the step that ran longest ago first: a thousand operators take half a MiB.
constexpr std::size_t kFewestSteps = 64, kMostOperators = 250'000;
// Training waits while a step that comes unexpectedly is planned.
constexpr plan::SearchOptions kInPassing{.simulated_ops = 500'000};

plan::Planner planner_for(const plan::StepGraph& graph, const std::string& strategy) {
  try {
    return {graph, strategy, kInPassing};
  } catch (const UsageError&) {
    return {graph, "optimal", kInPassing};  // the strategy asks for four blocks and this step has three, say
  }
}

/// For a step that no plan brings under the limit.
plan::MemoryPlan kept_within(const plan::StepGraph& graph, Bytes limit) {
  plan::MemoryPlan plan = plan::make_plan(graph, "none", std::nullopt);
  plan.budget = limit;
  return plan;
}

}  // namespace

StepBook::StepBook(std::vector<PlannedStep> kinds, std::optional<plan::Budget> budget, Bytes gradients,
                   std::shared_ptr<Agreement> agreement)
    : budget_(budget), agreement_(std::move(agreement)) {
  or_tell(*agreement_, [&] {
    if (kinds.empty() || kinds.front().step.kind == StepKind::Evaluation)
      throw UsageError("session: the first of its steps has no backward pass; give one that has in front");
  });
  const RecordedStep& first = kinds.front().step;
  state_to_come_ = first.state_to_come;
  beside_ = missing_ = first.beside;
  whole_ = first.graph.static_bytes - gradients - first.gradients;
  std::vector<plan::MemoryPlan> plans;
  agree(refusal_of([&] { plans = plan_all(kinds, budget); }));
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    auto& [step, planner] = kinds[i];
    if (step.kind == StepKind::Evaluation) {  // nobody follows a plan that has nothing to decide
      of_evaluation_ = std::max(of_evaluation_, plans[i].predicted_peak);
      continue;
    }
    known_.push_back({.graph = std::make_shared<plan::StepGraph>(std::move(step.graph)),
                      .plan = std::make_shared<plan::MemoryPlan>(std::move(plans[i])),
                      .planner = std::move(planner),
                      .kind = step.kind});
  }
}

std::exception_ptr StepBook::refusal_of(const std::function<void()>& plan) const {
  try {
    plan();
  } catch (const DoesNotFit&) {
    return std::current_exception();
  } catch (...) {
    tell_failure(*agreement_);
    throw;
  }
  return nullptr;
}

void StepBook::agree(const std::exception_ptr& refusal) const {
  const Vote all = ask(*agreement_, refusal ? Vote::No : Vote::Yes);
  if (refusal) std::rethrow_exception(refusal);
  if (all == Vote::No) {
    throw Error(
        "session: the step fits the budget here, but not in another process of the group, which says what it takes; "
        "raise the budget there, or use a smaller batch");
  }
}

void StepBook::count_missing(plan::StepGraph& graph) const {
  graph.static_bytes += state_to_come_ + missing_;
  graph.static_by_tag[static_cast<std::size_t>(memory::Tag::Optimizer)] += state_to_come_;
  graph.static_by_tag[static_cast<std::size_t>(memory::Tag::Staging)] += missing_;
}

void StepBook::add(plan::StepGraph graph, StepKind kind) {
  count_missing(graph);
  // The same optimizer step follows.
  const auto of_kind = std::ranges::find(known_, kind, &Known::kind);
  const plan::StepGraph& like = of_kind != known_.end() ? *of_kind->graph : *known_.front().graph;
  if (like.update_seconds > 0) graph.end_with_update(like.update_bytes, like.update_seconds);
  auto step = std::make_shared<plan::StepGraph>(std::move(graph));
  plan::Planner planner = planner_for(*step, known_.front().planner.strategy());
  std::shared_ptr<plan::MemoryPlan> plan;
  bool fits = true;
  try {
    plan = std::make_shared<plan::MemoryPlan>(planner.plan(*step, budget_));
  } catch (const DoesNotFit&) {
    plan = std::make_shared<plan::MemoryPlan>(kept_within(*step, budget_->limit));
    fits = false;
  }
  known_.insert(
      known_.begin(),
      {.graph = std::move(step), .plan = std::move(plan), .planner = std::move(planner), .kind = kind, .fits = fits});
  forget_old();
}

void StepBook::forget_old() {
  std::size_t operators = 0, kept = 0;
  for (; kept < known_.size(); ++kept) {
    operators += known_[kept].graph->ops.size();
    if (kept >= kFewestSteps && operators > kMostOperators) break;
  }
  known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(kept), known_.end());
}

void StepBook::ran(const plan::StepGraph* graph) {
  const auto found = std::ranges::find_if(known_, [&](const Known& known) { return known.graph.get() == graph; });
  if (found != known_.end()) std::rotate(known_.begin(), found, found + 1);
}

bool StepBook::outdated(const Known& known, Bytes allocated) const {
  const Bytes grown = allocated - known.graph->static_bytes;
  // Much less than before would let a faster plan fit, or one at all.
  if (grown <= -budget_->limit / 20) return true;
  if (!known.fits) return false;
  const Bytes room = budget_->for_blocks() - known.plan->predicted_peak;
  return grown > std::max<Bytes>(room, 0) + budget_->reserve / 2;  // the reserve covers odds and ends
}

Bytes StepBook::predicted_peak() const {
  Bytes highest = of_evaluation_;
  for (const Known& known : known_) {
    if (known.fits) highest = std::max(highest, known.plan->predicted_peak);
  }
  return highest > 0 ? highest : known_.front().plan->predicted_peak;
}

bool StepBook::expects(StepKind kind) const { return std::ranges::find(known_, kind, &Known::kind) != known_.end(); }

void StepBook::begin(const memory::Stats& stats, Bytes gradients, StepKind kind) {
  const Bytes absent = whole_ - (stats.allocated - gradients);
  // State that has come by now is not to come any more.
  state_to_come_ = std::clamp<Bytes>(absent, 0, state_to_come_);
  missing_ = std::clamp<Bytes>(absent - state_to_come_, 0, beside_);
  const auto expected = std::ranges::find(known_, kind, &Known::kind);
  // Without a budget every plan stands, but the others of the group may have one.
  const bool planned = budget_ && expected != known_.end();
  const bool stands = !planned || !outdated(*expected, stats.allocated + state_to_come_ + missing_);
  if (ask(*agreement_, stands ? Vote::Yes : Vote::No) == Vote::Yes) return;
  agree(refusal_of([&] {
    if (planned) plan_again(kind, stats);
  }));
}

/// The one that ran last is expected; where no plan fits that any more, another may come that has one.
void StepBook::plan_again(StepKind kind, const memory::Stats& stats) {
  std::exception_ptr refusal;
  std::vector<Known*> misfits;
  for (Known& known : known_) {
    if (known.kind != kind) continue;
    if (!refusal || outdated(known, stats.allocated + state_to_come_ + missing_)) {
      try {
        plan_again(known, stats);
      } catch (const DoesNotFit&) {
        if (!refusal) refusal = std::current_exception();
        misfits.push_back(&known);
        continue;
      }
    }
    if (!refusal) return;
    if (!known.fits) continue;
    for (Known* const misfit : misfits) {
      misfit->graph = moved_to(*misfit->graph, stats);
      misfit->plan = std::make_shared<plan::MemoryPlan>(kept_within(*misfit->graph, budget_->limit));
      misfit->fits = false;
    }
    return;
  }
  if (refusal) std::rethrow_exception(refusal);
}

void StepBook::plan_again(Known& known, const memory::Stats& stats) {
  const auto moved = moved_to(*known.graph, stats);
  try {
    known.plan = std::make_shared<plan::MemoryPlan>(known.planner.plan(*moved, budget_));
  } catch (const DoesNotFit&) {
    if (known.fits) throw;
    return;
  }
  known.graph = moved;
  known.fits = true;
}

std::shared_ptr<const plan::StepGraph> StepBook::moved_to(const plan::StepGraph& graph,
                                                          const memory::Stats& stats) const {
  auto moved = std::make_shared<plan::StepGraph>(graph);
  moved->static_bytes = stats.allocated;
  moved->static_by_tag = stats.by_tag;
  count_missing(*moved);
  return moved;
}

std::vector<record::KnownStep> StepBook::steps(StepKind kind) const {
  const bool all = !expects(kind);
  std::vector<record::KnownStep> steps;
  for (const Known& known : known_) {
    if (all || known.kind == kind) steps.push_back({known.plan, known.graph});
  }
  return steps;
}

}  // namespace snug::replay
