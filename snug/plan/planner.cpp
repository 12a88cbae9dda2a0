#include "snug/plan/planner.h"

#include "snug/base/match.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/module_presets.h"
#include "snug/plan/run/offload_presets.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"

namespace snug::plan {
namespace {

using namespace strategies;

}  // namespace

Planner::Plans Planner::plans_of(const StepGraph& graph, const Strategy& strategy, SearchOptions options) {
  return std::visit(Match{
                        [&](const Optimal&) -> Plans { return TradeOff(graph, options); },
                        [&](const None&) -> Plans { return plan_none(graph); },
                        [&](const EveryBlock&) -> Plans { return plan_every_block(graph); },
                        [&](const ChenSqrt&) -> Plans { return plan_chen_sqrt(graph); },
                        [&](const Revolve& s) -> Plans { return plan_revolve(graph, s.checkpoints); },
                        [&](const Sequential& s) -> Plans { return plan_sequential(graph, s.segments); },
                        [&](const SelectiveBlocks& s) -> Plans { return plan_selective_blocks(graph, s.operators); },
                        [&](const FullUniform& s) -> Plans { return plan_full_uniform(graph, s.layers); },
                        [&](const FullBlock& s) -> Plans { return plan_full_block(graph, s.layers); },
                        [&](const CoreAttention&) -> Plans { return plan_core_attention(graph); },
                        [&](const RecomputeModules& s) -> Plans { return plan_modules(graph, s.names); },
                        [&](const RecomputeOutputs& s) -> Plans { return plan_module_outputs(graph, s.names); },
                        [&](const OffloadModules& s) -> Plans { return plan_offloaded_modules(graph, s.names); },
                        [&](const Offload& s) -> Plans { return plan_offload(graph, s.min_bytes); },
                        [&](const OffloadedBlocks& s) -> Plans { return plan_offloaded_blocks(graph, s.kept); },
                        [&](const Eviction&) -> Plans { return Evicted{lower_bound_of_peak(graph)}; },
                    },
                    strategy);
}

Planner::Planner(const StepGraph& graph, std::string_view strategy, SearchOptions options)
    : strategy_(strategy),
      none_(plan_none(graph)),
      plans_(plans_of(graph, strategy_from(strategy), options)),
      outside_(graph.outside()),
      options_(options) {}

Planner::Planner(const StepGraph& graph, TradeOff found)
    : none_(plan_none(graph)), plans_(std::move(found)), outside_(graph.outside()) {}

Planner::Planner(const StepGraph& graph, MemoryPlan plan)
    : none_(plan_none(graph)), plans_(predicted(graph, std::move(plan))), outside_(graph.outside()) {}

MemoryPlan Planner::moved(const StepGraph& now, MemoryPlan plan) const {
  plan.predicted_peak += now.outside() - outside_;
  return plan;
}

MemoryPlan Planner::plan_of_first(const StepGraph& now, std::optional<Budget> budget) const {
  const auto kept = [&](const char* strategy) {
    MemoryPlan plan = moved(now, none_);
    plan.strategy = strategy;
    return plan;
  };
  MemoryPlan plan = std::visit(Match{
                                   [&](const TradeOff& t) { return budget ? t.best(now, *budget) : kept("optimal"); },
                                   [&](const MemoryPlan& fixed) { return moved(now, fixed); },
                                   [&](const Evicted&) {
                                     MemoryPlan all = kept("eviction");
                                     // What eviction takes the peak down to, if it can.
                                     if (budget)
                                       all.predicted_peak =
                                           std::max(std::min(all.predicted_peak, budget->for_blocks()), floor(now));
                                     return all;
                                   },
                               },
                               plans_);
  plan.budget = budget ? budget->limit : 0;
  plan.unplanned_peak = moved(now, none_).predicted_peak;
  plan.unplanned_seconds = now.step_seconds;
  if (budget && plan.predicted_peak > budget->for_blocks()) {
    DoesNotFit::Floor floor = floor_of(now, plan, *budget);
    const bool is_given = strategy_ == "optimal" && std::holds_alternative<MemoryPlan>(plans_);
    if (is_given) floor.strategy.clear();
    throw DoesNotFit(std::move(floor));
  }
  return plan;
}

MemoryPlan Planner::plan(const StepGraph& now, const Budgets& budgets) const {
  return everywhere(now, plan_of_first(now, budgets.own), budgets);
}

MemoryPlan Planner::lowest(const StepGraph& now, const Budgets& budgets) const {
  MemoryPlan plan =
      std::visit(Match{
                     [&](const TradeOff& t) { return t.lowest(now); },
                     [&](const auto&) { return plan_of_first(now, Budget{.limit = floor(now), .reserve = 0}); },
                 },
                 plans_);
  plan.budget = budgets.own ? budgets.own->limit : 0;
  plan.unplanned_peak = moved(now, none_).predicted_peak;
  plan.unplanned_seconds = now.step_seconds;
  return everywhere(now, std::move(plan), budgets);
}

MemoryPlan Planner::everywhere(const StepGraph& now, MemoryPlan first, const Budgets& budgets) const {
  if (budgets.others.empty()) return first;
  return std::visit(
      Match{
          [&](const TradeOff&) { return plan_everywhere(now, std::move(first), budgets, *searches_, options_); },
          [&](const MemoryPlan&) { return checked_everywhere(now, std::move(first), budgets); },
          [&](const Evicted&) { return std::move(first); },  // as on the first, so on the others
      },
      plans_);
}

Bytes Planner::floor(const StepGraph& now) const {
  const Bytes then = std::visit(Match{
                                    [](const TradeOff& t) { return t.floor(); },
                                    [](const MemoryPlan& fixed) { return fixed.predicted_peak; },
                                    [](const Evicted& e) { return e.least; },
                                },
                                plans_);
  return then + now.outside() - outside_;
}

LowerBound lower_bound_within(const StepGraph& graph, std::optional<Budget> budget) {
  return lower_bound(graph, budget ? budget->for_blocks() : plan_none(graph).predicted_peak);
}

MemoryPlan make_plan(const StepGraph& graph, std::string_view strategy, std::optional<Budget> budget) {
  return Planner(graph, strategy).plan(graph, budget);
}

}  // namespace snug::plan
