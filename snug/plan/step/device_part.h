#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::plan {

struct StepGraph;

/// What a step takes of the memory of a further device, in the same terms as of the first.
struct DevicePart {
  struct Taken {
    Bytes peak = 0;  ///< the highest above that before it
    Bytes net = 0;   ///< left behind, above that before it; of operators without their outputs
    friend bool operator==(const Taken&, const Taken&) = default;
  };
  std::int32_t device = 1;  ///< in StepGraph::devices; not the first
  Bytes static_bytes = 0;
  std::array<Bytes, 6> static_by_tag{};
  std::vector<Taken> ops;     ///< by OpId
  std::vector<Taken> events;  ///< by position in StepGraph::events; of allocations and frees alone
  Bytes update_bytes = 0;
  friend bool operator==(const DevicePart&, const DevicePart&) = default;
};

/// The same step as one of its further devices has it: that one is the first, and there are no others.
StepGraph seen_from(const StepGraph& graph, const DevicePart& part);

}  // namespace snug::plan
