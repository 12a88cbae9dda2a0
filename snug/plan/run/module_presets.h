#pragma once

#include <span>
#include <string>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

// Known schemes that speak of a model's modules by their names (see calls_of_modules), each as the plan that it amounts
// to. Pure.
namespace snug::plan {

/// Megatron-Core's recompute_granularity=selective with its recompute_modules: what a module makes inside is made
/// again, and what others read of it is kept.
MemoryPlan plan_modules(const StepGraph& graph, std::span<const std::string> names);

/// Megatron-Core's checkpoints without output (for its layernorm, moe_act, mla_up_proj): what others read of the module
/// is dropped as well, and made again for the first of them that goes backward.
MemoryPlan plan_module_outputs(const StepGraph& graph, std::span<const std::string> names);

}  // namespace snug::plan
