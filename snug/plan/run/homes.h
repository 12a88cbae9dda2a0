#pragma once

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// The plan with values moved to the disk, where there is one, for which the host has no room, as far as they would all
/// be there at once: those that autograd saves first, as there is most time to fetch them.
MemoryPlan within_host(const StepGraph& graph, MemoryPlan plan);

}  // namespace snug::plan
