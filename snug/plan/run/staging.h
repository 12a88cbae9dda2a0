#pragma once

#include <cstdint>

#include "snug/base/bytes.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// What a step of `graph` under `plan` does of its staging: it fetches what moves ahead, and nothing else, and has no
/// memory for copies where it makes none. The step and the simulator go by it.
Staging staging_of(const StepGraph& graph, const MemoryPlan& plan);

/// From when on a plan fetches ahead.
enum class FetchFrom : std::uint8_t {
  TheBeginning,  ///< of backward
  ThePeak        ///< once the plan's peak is over
};

/// The plan, within_host(), with memory for copies that nobody waits for; what it fetches ahead comes in the order in
/// which backward asks for it, with a place for all that it could move. Its predictions are out of date.
MemoryPlan staged(const StepGraph& graph, MemoryPlan plan, Bytes leaving, Bytes arriving,
                  FetchFrom from = FetchFrom::TheBeginning);

}  // namespace snug::plan
