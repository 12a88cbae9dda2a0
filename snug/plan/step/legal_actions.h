#pragma once

#include <span>
#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// What a plan may say of the value, in an order that is always the same: all searches choose among these. One action
/// where there is no choice. Moving is among them for what autograd saves where the graph knows what it takes;
/// elsewhere only plans that were made by hand say it.
[[nodiscard]] std::span<const Action> legal_actions(const StepGraph& graph, ValueId value);

/// There is more than one.
[[nodiscard]] inline bool has_choice(const StepGraph& graph, ValueId value) {
  return legal_actions(graph, value).size() > 1;
}

/// Moving is among them.
[[nodiscard]] bool may_move(const StepGraph& graph, ValueId value);

/// Bytes of the first device that the value takes while nothing reads it, under the action.
[[nodiscard]] Bytes bytes_held(const StepGraph& graph, ValueId value, Action action);

/// Those but the one that the plan has for it.
[[nodiscard]] std::vector<Action> other_actions(const StepGraph& graph, const MemoryPlan& plan, ValueId value);

/// What happens to the value in a step of `graph` under `plan`.
[[nodiscard]] inline Action decided(const StepGraph& graph, const MemoryPlan& plan, ValueId value) {
  const ValueInfo& info = graph.values[at(value)];
  return as_possible(decide(info.must, plan.action(value)), info.encodings);
}

}  // namespace snug::plan
