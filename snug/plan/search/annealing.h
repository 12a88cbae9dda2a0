#pragma once

#include <vector>

#include "snug/plan/search/front.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// Simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983) over kept values and segments, at peaks where the front is
/// far above the lower bound on the step time, the more the further. It takes thousands of simulations. Deterministic:
/// the seed and the number of tries are fixed by the graph.
std::vector<MemoryPlan> with_annealing(const StepGraph& graph, std::vector<MemoryPlan> front, Effort effort);

}  // namespace snug::plan
