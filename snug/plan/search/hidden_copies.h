#pragma once

#include <vector>

#include "snug/plan/search/front.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

// Plans whose copies go on while the step computes (MoveCost::overlaps), so that they take less of its time than they
// last.
namespace snug::plan {

/// The step as if a copy took `share` of its seconds: searches that count them all propose too few.
StepGraph with_quicker_copies(const StepGraph& graph, double share);

/// Plans that recompute nothing and move what is saved first: all of it, and less and less.
std::vector<MemoryPlan> offloading_plans(const StepGraph& graph);

/// Some of the plans, evenly spread, with as much moved of what they move or make again as the copies to the host have
/// time for while the forward pass computes, the dearest per byte first: with little and with more memory for copies.
std::vector<MemoryPlan> with_links_filled(const StepGraph& graph, const std::vector<MemoryPlan>& plans);

/// The plans, and beside each that moves anything the same with memory for copies on their way, as far as it is worth
/// having.
std::vector<MemoryPlan> with_copies_staged(const StepGraph& graph, std::vector<MemoryPlan> plans, Effort& effort);

}  // namespace snug::plan
