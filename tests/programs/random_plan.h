#pragma once

#include <cstdint>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::programs {

/// Which codecs there are for a plan.
enum class Codecs : std::uint8_t { Exact, AlsoLossy };

/// Any choice of what to keep, compress, move and make again, in any nested segments, with any memory for copies. Gives
/// values of the graph encodings.
plan::MemoryPlan random_plan(plan::StepGraph& graph, std::uint32_t seed, Codecs codecs);

}  // namespace snug::programs
