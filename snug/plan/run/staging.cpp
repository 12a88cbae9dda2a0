#include "snug/plan/run/staging.h"

#include <algorithm>
#include <utility>

#include "snug/plan/run/homes.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {

Staging staging_of(const StepGraph& graph, const MemoryPlan& plan) {
  Staging staging = plan.staging;
  std::erase_if(staging.order, [&](ValueId v) { return !is_moved(decided(graph, plan, v)); });
  if (staging.order.empty()) staging.arriving = staging.first = 0;
  if (std::ranges::none_of(plan.actions, is_moved)) staging.leaving = 0;
  return staging;
}

MemoryPlan staged(const StepGraph& graph, MemoryPlan plan, Bytes leaving, Bytes arriving, FetchFrom from) {
  plan = within_host(graph, std::move(plan));
  plan.staging = {.leaving = leaving};
  if (arriving == 0) return plan;
  const Simulation run = simulate(graph, plan);
  plan.staging.arriving = arriving;
  plan.staging.order = run.asked;
  // What the step waits for would only come too early.
  std::erase_if(plan.staging.order, [&](ValueId v) {
    const auto& cost = graph.moves.to(plan.action(v).home);
    return !may_move(graph, v) || (is_moved(plan.action(v)) && cost && !cost->overlaps);
  });
  if (from == FetchFrom::ThePeak) {
    const auto at_peak = graph.events.begin() + static_cast<std::ptrdiff_t>(run.peak_event);
    const auto settled = std::ranges::find(graph.events.begin(), at_peak, Event::Kind::Settle, &Event::kind);
    plan.staging.first = static_cast<std::int32_t>(
        std::count_if(settled, at_peak, [](const Event& e) { return e.kind == Event::Kind::Unpack; }));
  }
  return plan;
}

}  // namespace snug::plan
