#pragma once

#include <vector>

#include "snug/plan/search/front.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// Plans with small peaks, for the floor. Nothing in them depends on how long operators take, so that two recordings of
/// one step have the same floor. Found by the dynamic program with operators as dear as what they make is large, and a
/// descent from the lowest of its plans: as long as keeping or dropping one more value, or adding or leaving out one
/// segment, makes the peak smaller, it is done. Predictions are not those of `graph`.
std::vector<MemoryPlan> low_plans(const StepGraph& graph, std::size_t pieces, Effort effort);

}  // namespace snug::plan
