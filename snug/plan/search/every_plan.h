#pragma once

#include <cstdint>
#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// How many plans differ for a step: keep or recompute each value, times the ways to nest segments. `most` when there
/// are more.
std::int64_t count_plans(const StepGraph& graph, std::int64_t most);

/// All of them, without predictions. Only for steps of a few operators: see count_plans.
std::vector<MemoryPlan> every_plan(const StepGraph& graph);

}  // namespace snug::plan
