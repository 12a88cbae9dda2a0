#pragma once

#include <vector>

#include "snug/plan/search/front.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// Plans on the way down from keeping everything to the end of `front`: as long as the peak is above the next of a few
/// levels, the value goes whose loss costs the fewest seconds for what it takes off the memory above that level, over
/// all moments of the step. Eviction decides alike, one moment at a time (Kirisame et al. 2021, DTR, arXiv 2006.09616);
/// here the whole step is simulated for every choice, and segments join where values alone do not help. Several ways
/// down: without segments, with segments of one to three pieces of the step (see chain_cuts, of which `pieces` is the
/// limit), and from the front. They begin at the level where the front is no longer near the lower bound. Predictions
/// are filled in. Pure.
std::vector<MemoryPlan> descending_plans(const StepGraph& graph, const std::vector<MemoryPlan>& front,
                                         std::size_t pieces, Effort effort);

}  // namespace snug::plan
