#pragma once

#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// Memory that no plan can do without while each event of a step happens: what was there before the step, other
/// allocations, values that the program refers to, values that a backward node has unpacked, and what the event itself
/// takes. By position in StepGraph::events. Its maximum is a lower bound on the peak of every plan.
std::vector<Bytes> unavoidable_bytes(const StepGraph& graph);

/// What one micro-batch holds between its forward and its backward pass whatever its plan is, above the static bytes.
/// At most held_in_between() of any plan.
Bytes unavoidable_in_between(const StepGraph& graph);

}  // namespace snug::plan
