#pragma once

#include <span>
#include <string>
#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

// Known schemes of activation checkpointing, each as the plan that it amounts to. Those that speak of a model's layers
// take the repeated blocks of the step for them (see repeated_blocks). All are pure; they throw UsageError for
// arguments that the scheme does not allow, and for schemes that need repeated blocks when there are none.
namespace snug::plan {

/// Keeps nothing but leaves, in one segment: what other plans add to. No scheme of its own, and without predictions.
MemoryPlan bare_plan(const StepGraph& graph);

/// Keeps everything that autograd saves: the step as PyTorch runs it.
MemoryPlan plan_none(const StepGraph& graph);

/// The same, but for what `plan` leaves to a lossy codec: the step whose gradients those under `plan` are, to the bit.
MemoryPlan plan_lossy_alone(const StepGraph& graph, const MemoryPlan& plan);

/// Drops what is saved inside the given ranges, which are replayed one by one; what crosses from one to the next is
/// kept. What torch.utils.checkpoint around each range does.
MemoryPlan plan_segments(const StepGraph& graph, std::span<const SegmentRange> segments);

/// torch.utils.checkpoint around every block.
MemoryPlan plan_every_block(const StepGraph& graph);

/// Groups the blocks into about sqrt(n) segments and checkpoints each (Chen et al. 2016, arXiv 1604.06174).
MemoryPlan plan_chen_sqrt(const StepGraph& graph);

/// torch.utils.checkpoint_sequential over the blocks: `segments` segments of n / segments blocks each; the last takes
/// what is left over and is not checkpointed. 1 <= segments <= n.
MemoryPlan plan_sequential(const StepGraph& graph, int segments);

/// Selective checkpointing (PyTorch's SAC) of every block: results of the named operators ("aten::mm") are kept,
/// everything else inside a block is made again. A name without its overload means them all. Throws UsageError when the
/// step has no operator of one of the names.
MemoryPlan plan_selective_blocks(const StepGraph& graph, std::span<const std::string> operators);

/// Binomial checkpointing of the chain of blocks with room for `checkpoints` block inputs at a time, the first
/// block's included (Griewank and Walther 2000, "Algorithm 799: Revolve"). checkpoints >= 1.
MemoryPlan plan_revolve(const StepGraph& graph, int checkpoints);

/// Megatron-Core's recompute_granularity=full, recompute_method=uniform: each `layers` blocks in a row are one
/// checkpoint, the last may be shorter. 1 <= layers <= n.
MemoryPlan plan_full_uniform(const StepGraph& graph, int layers);

/// Megatron-Core's recompute_granularity=full, recompute_method=block: each of the first `layers` blocks is a
/// checkpoint, the others keep everything. 1 <= layers <= n.
MemoryPlan plan_full_block(const StepGraph& graph, int layers);

/// Megatron-Core's recompute_granularity=selective with its default module, core_attn (Korthikanti et al. 2022, arXiv
/// 2205.05198): what is made from queries, keys and values up to their attention's result is made again.
MemoryPlan plan_core_attention(const StepGraph& graph);

/// The schemes above that suit the step, with all their arguments, or some when there are many blocks. The first is
/// plan_none.
std::vector<MemoryPlan> all_presets(const StepGraph& graph);

/// Nested ranges over the steps [0, `steps`) of a chain, replayed with the fewest steps for so many checkpoints: what
/// plan_revolve makes of blocks.
std::vector<SegmentRange> revolve_segments(int steps, int checkpoints);

}  // namespace snug::plan
