#pragma once

#include "snug/plan/budget.h"
#include "snug/plan/memory_plan.h"
#include "snug/plan/step_graph.h"

namespace snug::plan {

/// The first plan under the budget that dropping values in the order of seconds of replay per byte finds, with the
/// presets as other starting points, and then everything kept again that still fits. Pure and deterministic. Throws
/// DoesNotFit naming the smallest peak that it found.
MemoryPlan plan_greedy(const StepGraph& graph, Budget budget);

/// The plan with the smallest peak that the greedy search finds, whatever it costs.
MemoryPlan plan_floor(const StepGraph& graph);

}  // namespace snug::plan
