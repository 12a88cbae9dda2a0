#pragma once

#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// Plans for budgets all the way from the unplanned peak to the least that is possible, found by prices: memory has a
/// price at each of a few moments of the step, a value costs what it takes at all of those that it would be there, and
/// the plan is the best choice at these prices (see Relaxation). Prices rise where the plan's peak is above the budget
/// and fall elsewhere (subgradient steps on the Lagrangian dual, Polyak 1969). Predictions are filled in.
std::vector<MemoryPlan> priced_plans(const StepGraph& graph);

}  // namespace snug::plan
