#include "snug/replay/step_book.h"

#include <algorithm>
#include <utility>

#include "snug/base/errors.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/presets.h"

namespace snug::replay {
namespace {

constexpr std::size_t kMostSteps = 64;  // the one that ran longest ago goes first
// Training waits while a step that comes unexpectedly is planned.
constexpr plan::SearchOptions kInPassing{.simulated_ops = 500'000};

plan::Planner planner_for(const plan::StepGraph& graph, const std::string& strategy) {
  try {
    return {graph, strategy, kInPassing};
  } catch (const UsageError&) {
    return {graph, "optimal", kInPassing};  // four blocks of a step that has three, say
  }
}

}  // namespace

StepBook::StepBook(plan::StepGraph graph, plan::Planner planner, std::optional<plan::Budget> budget) : budget_(budget) {
  auto first = std::make_shared<plan::StepGraph>(std::move(graph));
  auto plan = std::make_shared<plan::MemoryPlan>(planner.plan(*first, budget));
  known_.push_back({std::move(first), std::move(plan), std::move(planner), false});
}

void StepBook::add(plan::StepGraph graph, bool accumulates) {
  // The same optimizer step follows.
  if (const plan::StepGraph& known = *known_.front().graph; known.update_seconds > 0) {
    graph.end_with_update(known.update_bytes, known.update_seconds);
  }
  auto step = std::make_shared<plan::StepGraph>(std::move(graph));
  plan::Planner planner = planner_for(*step, known_.front().planner.strategy());
  std::shared_ptr<plan::MemoryPlan> plan;
  try {
    plan = std::make_shared<plan::MemoryPlan>(planner.plan(*step, budget_));
  } catch (const DoesNotFit&) {
    plan = std::make_shared<plan::MemoryPlan>(plan::plan_none(*step));
  }
  known_.insert(known_.begin(), {std::move(step), std::move(plan), std::move(planner), accumulates});
  if (known_.size() > kMostSteps) known_.pop_back();
}

void StepBook::ran(const plan::StepGraph* graph) {
  const auto found = std::ranges::find_if(known_, [&](const Known& known) { return known.graph.get() == graph; });
  if (found != known_.end()) std::rotate(known_.begin(), found, found + 1);
}

bool StepBook::outdated(const Known& known, Bytes allocated) const {
  const Bytes grown = allocated - known.graph->static_bytes;
  const Bytes room = budget_->for_blocks() - known.plan->predicted_peak;
  // The reserve covers odds and ends; much less than before would let a faster plan fit.
  return grown > std::max<Bytes>(room, 0) + budget_->reserve / 2 || grown <= -budget_->device / 20;
}

bool StepBook::expects(bool accumulates) const {
  return std::ranges::any_of(known_, [&](const Known& known) { return known.accumulates == accumulates; });
}

void StepBook::begin(const memory::Stats& stats, bool accumulates) {
  if (!budget_) return;
  bool expected = true;  // the first of its kind
  for (Known& known : known_) {
    if (known.accumulates != accumulates) continue;
    const bool is_first = std::exchange(expected, false);
    if (!outdated(known, stats.allocated)) continue;
    auto moved = std::make_shared<plan::StepGraph>(*known.graph);
    moved->static_bytes = stats.allocated;
    moved->static_by_tag = stats.by_tag;
    try {
      known.plan = std::make_shared<plan::MemoryPlan>(known.planner.plan(*moved, budget_));
    } catch (const DoesNotFit&) {
      if (is_first) throw;
      continue;  // it may never come again, or when there is more room
    }
    known.graph = std::move(moved);
  }
}

std::vector<record::KnownStep> StepBook::steps(bool accumulates) const {
  const bool all = !expects(accumulates);
  std::vector<record::KnownStep> steps;
  for (const Known& known : known_) {
    if (all || known.accumulates == accumulates) steps.push_back({known.plan, known.graph});
  }
  return steps;
}

}  // namespace snug::replay
