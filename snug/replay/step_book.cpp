#include "snug/replay/step_book.h"

#include <algorithm>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"

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

StepBook::StepBook(plan::StepGraph graph, plan::Planner planner, std::optional<plan::Budget> budget,
                   Bytes state_to_come, Bytes gradients)
    : budget_(budget), state_to_come_(state_to_come), whole_(graph.static_bytes - gradients) {
  auto first = std::make_shared<plan::StepGraph>(std::move(graph));
  auto plan = std::make_shared<plan::MemoryPlan>(planner.plan(*first, budget));
  known_.push_back({.graph = std::move(first), .plan = std::move(plan), .planner = std::move(planner)});
}

void StepBook::count_state(plan::StepGraph& graph) const {
  graph.static_bytes += state_to_come_;
  graph.static_by_tag[static_cast<std::size_t>(memory::Tag::Optimizer)] += state_to_come_;
}

void StepBook::add(plan::StepGraph graph, bool accumulates) {
  count_state(graph);
  // The same optimizer step follows.
  if (const plan::StepGraph& known = *known_.front().graph; known.update_seconds > 0) {
    graph.end_with_update(known.update_bytes, known.update_seconds);
  }
  auto step = std::make_shared<plan::StepGraph>(std::move(graph));
  plan::Planner planner = planner_for(*step, known_.front().planner.strategy());
  std::shared_ptr<plan::MemoryPlan> plan;
  bool fits = true;
  try {
    plan = std::make_shared<plan::MemoryPlan>(planner.plan(*step, budget_));
  } catch (const DoesNotFit&) {
    plan = std::make_shared<plan::MemoryPlan>(plan::plan_none(*step));
    fits = false;
  }
  known_.insert(known_.begin(), {.graph = std::move(step),
                                 .plan = std::move(plan),
                                 .planner = std::move(planner),
                                 .accumulates = accumulates,
                                 .fits = fits});
  if (known_.size() > kMostSteps) known_.pop_back();
}

void StepBook::ran(const plan::StepGraph* graph) {
  const auto found = std::ranges::find_if(known_, [&](const Known& known) { return known.graph.get() == graph; });
  if (found != known_.end()) std::rotate(known_.begin(), found, found + 1);
}

bool StepBook::outdated(const Known& known, Bytes allocated) const {
  const Bytes grown = allocated - known.graph->static_bytes;
  // Much less than before would let a faster plan fit, or one at all.
  if (grown <= -budget_->device / 20) return true;
  if (!known.fits) return false;
  const Bytes room = budget_->for_blocks() - known.plan->predicted_peak;
  return grown > std::max<Bytes>(room, 0) + budget_->reserve / 2;  // the reserve covers odds and ends
}

bool StepBook::expects(bool accumulates) const {
  return std::ranges::any_of(known_, [&](const Known& known) { return known.accumulates == accumulates; });
}

void StepBook::begin(const memory::Stats& stats, Bytes gradients, bool accumulates) {
  if (!budget_) return;
  // What has come by now is not to come any more.
  state_to_come_ = std::clamp<Bytes>(whole_ - (stats.allocated - gradients), 0, state_to_come_);
  const auto expected = std::ranges::find(known_, accumulates, &Known::accumulates);
  if (expected == known_.end()) return;
  if (!outdated(*expected, stats.allocated + state_to_come_)) return;
  auto moved = std::make_shared<plan::StepGraph>(*expected->graph);
  moved->static_bytes = stats.allocated;
  moved->static_by_tag = stats.by_tag;
  count_state(*moved);
  try {
    expected->plan = std::make_shared<plan::MemoryPlan>(expected->planner.plan(*moved, budget_));
  } catch (const DoesNotFit&) {
    if (expected->fits) throw;
    return;
  }
  expected->graph = std::move(moved);
  expected->fits = true;
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
