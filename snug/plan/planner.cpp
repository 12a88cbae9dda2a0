#include "snug/plan/planner.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "snug/plan/does_not_fit.h"
#include "snug/plan/lower_bound.h"
#include "snug/plan/presets.h"
#include "snug/plan/simulator.h"

namespace snug::plan {
namespace {

using namespace strategies;

template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};

/// The one plan of a strategy; none when there are many to choose from.
std::optional<MemoryPlan> preset(const StepGraph& graph, const Strategy& strategy) {
  using Plan = std::optional<MemoryPlan>;
  return std::visit(Match{
                        [](const Optimal&) { return Plan(); },
                        [&](const None&) { return Plan(plan_none(graph)); },
                        [&](const EveryBlock&) { return Plan(plan_every_block(graph)); },
                        [&](const ChenSqrt&) { return Plan(plan_chen_sqrt(graph)); },
                        [&](const Revolve& s) { return Plan(plan_revolve(graph, s.checkpoints)); },
                        [&](const Sequential& s) { return Plan(plan_sequential(graph, s.segments)); },
                        [&](const Selective& s) { return Plan(plan_selective(graph, s.operators)); },
                        [&](const FullUniform& s) { return Plan(plan_full_uniform(graph, s.layers)); },
                        [&](const FullBlock& s) { return Plan(plan_full_block(graph, s.layers)); },
                        [&](const CoreAttention&) { return Plan(plan_core_attention(graph)); },
                        [&](const Eviction&) { return Plan(plan_none(graph)); },
                    },
                    strategy);
}

}  // namespace

Planner::Planner(const StepGraph& graph, std::string_view strategy)
    : strategy_(strategy),
      none_(plan_none(graph)),
      preset_(preset(graph, strategy_from(strategy))),
      static_bytes_(graph.static_bytes) {
  if (!preset_) trade_off_.emplace(graph);
  if (std::holds_alternative<Eviction>(strategy_from(strategy))) {
    preset_->strategy = "eviction";
    evicted_to_ = lower_bound_of_peak(graph);
  }
}

Planner::Planner(const StepGraph& graph, MemoryPlan plan)
    : none_(plan_none(graph)), preset_(predicted(graph, std::move(plan))), static_bytes_(graph.static_bytes) {}

MemoryPlan Planner::plan(const StepGraph& now, std::optional<Budget> budget) const {
  const Bytes more_static = now.static_bytes - static_bytes_;
  MemoryPlan plan;
  if (trade_off_ && budget) {
    plan = trade_off_->best(now, *budget);
  } else {
    plan = preset_ ? *preset_ : none_;
    plan.predicted_peak += more_static;
  }
  if (trade_off_) plan.strategy = "optimal";
  plan.budget = budget ? budget->device : 0;
  plan.unplanned_peak = none_.predicted_peak + more_static;
  plan.unplanned_seconds = now.step_seconds;
  if (evicted_to_ && budget) {
    // What eviction takes the peak down to, if it can.
    plan.predicted_peak = std::max(std::min(plan.predicted_peak, budget->for_blocks()), *evicted_to_ + more_static);
  }
  if (budget && plan.predicted_peak > budget->for_blocks()) throw DoesNotFit(floor_of(now, plan, *budget));
  return plan;
}

Bytes Planner::floor(const StepGraph& now) const {
  if (evicted_to_) return *evicted_to_ + now.static_bytes - static_bytes_;
  return (trade_off_ ? trade_off_->floor() : preset_->predicted_peak) + now.static_bytes - static_bytes_;
}

MemoryPlan make_plan(const StepGraph& graph, std::string_view strategy, std::optional<Budget> budget) {
  return Planner(graph, strategy).plan(graph, budget);
}

}  // namespace snug::plan
