#pragma once

#include <span>

#include "snug/plan/memory_plan.h"
#include "snug/plan/step_graph.h"

namespace snug::plan {

/// Keeps everything that autograd saves: the step as PyTorch runs it.
MemoryPlan plan_none(const StepGraph& graph);

/// Drops what is saved inside the given ranges, which are replayed one by one; what crosses from one to the next is
/// kept. What torch.utils.checkpoint around each range does.
MemoryPlan plan_segments(const StepGraph& graph, std::span<const SegmentRange> segments);

/// Checkpoints every repeated block of the model (see repeated_blocks).
MemoryPlan plan_every_block(const StepGraph& graph);

/// Groups the repeated blocks into about sqrt(n) segments and checkpoints each (Chen et al. 2016, arXiv 1604.06174).
MemoryPlan plan_sqrt(const StepGraph& graph);

}  // namespace snug::plan
