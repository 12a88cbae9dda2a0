#pragma once

#include <span>
#include <string>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

// Known schemes that move what autograd saves out of the device's memory, each as the plan that it amounts to: to the
// host, or where that has no budget or no room to the disk. They throw UsageError where plans may move to neither, or
// have no room there.
namespace snug::plan {

/// torchtune's OffloadActivations: all of `min_bytes` or more that is saved is moved, but what the output head makes,
/// which is what comes behind the repeated blocks; five of them may be on their way (max_fwd_stash_size).
MemoryPlan plan_offload(const StepGraph& graph, Bytes min_bytes);

/// DeepSpeed's cpu_checkpointing and Unsloth's gradient checkpointing: every block is checkpointed, and what the blocks
/// begin with is moved, but for the last `kept` of them; two of those may be on their way. Unsloth keeps one.
/// 0 <= kept <= n.
MemoryPlan plan_offloaded_blocks(const StepGraph& graph, int kept);

/// Megatron-Core's fine-grained activation offloading: what autograd saves in modules of these names (see
/// calls_of_modules), their inputs as well, is moved; two modules' largest may be on their way.
MemoryPlan plan_offloaded_modules(const StepGraph& graph, std::span<const std::string> names);

}  // namespace snug::plan
