#pragma once

#include <cstdint>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// What is there beside the values of a step, on its first device, static bytes among it: by gap, of which there is one
/// in front of each event that is not Event::Kind::Other, and one behind the last.
struct OtherMemory {
  std::vector<Bytes> ends;   ///< at the end of each gap
  std::vector<Bytes> peaks;  ///< the most in it
  Bytes update = 0;          ///< the most in the update, if there is one
  friend bool operator==(const OtherMemory&, const OtherMemory&) = default;
};

[[nodiscard]] OtherMemory other_memory_of(const StepGraph& graph);

/// The step has so much there from now on, beside the same values. `memory` has as many gaps; else std::logic_error.
void set_other_memory(StepGraph& graph, const OtherMemory& memory);

/// Tells apart what happens to values in steps, whatever else takes memory in between: steps of one hash have the same
/// gaps.
[[nodiscard]] std::uint64_t hash_of_uses(const StepGraph& graph);

}  // namespace snug::plan
