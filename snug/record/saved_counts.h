#pragma once

#include <cstdint>

namespace snug::record {

/// What became of the tensors that autograd saved.
struct SavedCounts {
  std::int64_t dropped = 0;  ///< can be made again, or fetched
  std::int64_t kept = 0;     ///< could be, but what the region or the plan says holds them
  std::int64_t leaves = 0;   ///< no recorded operator made them: weights, inputs, what something outside of ATen filled
  std::int64_t layout = 0;   ///< no plain strided tensors (see is_plain)
};

}  // namespace snug::record
