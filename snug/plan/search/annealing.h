#pragma once

#include <vector>

#include "snug/plan/search/front.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// Simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983) through a Neighbourhood, at peaks where the front is far
/// above the lower bound on the step time, the more the further. It takes thousands of simulations, and whatever is
/// worth having of what it comes by joins the front, unless its neighbours there are as good but for a trifle.
/// Deterministic: the seed is always the same, and the number of tries follows from `effort`.
std::vector<MemoryPlan> with_annealing(const StepGraph& graph, std::vector<MemoryPlan> front, Effort effort);

}  // namespace snug::plan
