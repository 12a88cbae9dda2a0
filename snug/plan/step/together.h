#pragma once

#include <string_view>

#include "snug/plan/step/dataflow.h"

namespace snug::plan {

struct StepGraph;

/// Operators of this namespace run in several processes at once, and give the same results whenever all of them run
/// them again: parallel/tensor_group.h.
inline constexpr std::string_view kTogetherNamespace = "snug_collective::";

/// Who has to take part when an operator runs again.
[[nodiscard]] constexpr Runs runs_of(std::string_view op_name) {
  return op_name.starts_with(kTogetherNamespace) ? Runs::Together : Runs::Alone;
}

/// Whether plans of the step may have processes run something again together: then all must have the same plan.
[[nodiscard]] bool may_replay_together(const StepGraph& graph);
/// The same of the operators in front of that one.
[[nodiscard]] bool may_replay_together(const StepGraph& graph, OpId end);
/// What is made together, and written over later, is not held: where it was, something that is made of it could be
/// evicted, and then need it again in one process alone.
void let_go_of_what_is_written_over(StepGraph& graph);
/// What is made together is kept, whatever plans say; of what is written over later all that is made.
void keep_what_is_made_together(StepGraph& graph);

}  // namespace snug::plan
