#pragma once

#include <cstdint>
#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// The number of different plans of a step: the product of each value's actions and of the ways to nest segments, or
/// `most` if there are more. Quick for steps of any size. `most` is at most 2^30.
std::int64_t count_plans(const StepGraph& graph, std::int64_t most);

/// All of them, without predictions. Only for steps of a few operators: see count_plans.
std::vector<MemoryPlan> every_plan(const StepGraph& graph);

}  // namespace snug::plan
