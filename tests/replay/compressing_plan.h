#pragma once

#include <optional>
#include <utility>

#include "snug/plan/planner.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::testing {

/// All that can be compressed such that `chosen` holds of it is, the last way that does, and the rest kept.
template <class Chosen>
plan::MemoryPlan compressing(const plan::StepGraph& graph, const Chosen& chosen) {
  plan::MemoryPlan plan = plan::make_plan(graph, "none", std::nullopt);
  for (plan::ValueId v = 0; v < graph.flow.values(); ++v) {
    for (const plan::Action action : plan::legal_actions(graph, v)) {
      if (plan::is_compressed(action) && chosen(action)) plan.actions[plan::at(v)] = action;
    }
  }
  return plan::predicted(graph, std::move(plan));
}

inline plan::MemoryPlan compressing_all(const plan::StepGraph& graph) {
  return compressing(graph, [](plan::Action) { return true; });
}

}  // namespace snug::testing
