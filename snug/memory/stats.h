#pragma once

#include <array>
#include <optional>

#include "snug/base/bytes.h"
#include "snug/memory/tag.h"

namespace snug::memory {

/// Bytes by tag.
using ByTag = std::array<Bytes, kTags>;

/// What an allocator has handed out. `allocated` counts whole blocks, as rounded by the allocator, so that it is the
/// memory that is really taken. All figures in bytes; peaks since the last reset_peak().
struct Stats {
  Bytes allocated = 0;
  Bytes allocated_peak = 0;
  Bytes mapped = 0;  ///< physical memory held by the allocator: allocated blocks and cached free ones
  Bytes mapped_peak = 0;
  std::optional<Bytes> limit;  ///< mapped never exceeds it
  ByTag by_tag{};
  ByTag peak_by_tag{};              ///< each tag's own peak; they need not happen at the same time
  ByTag at_peak_by_tag{};           ///< the split at the moment of allocated_peak; sums to it
  std::int64_t allocations = 0;     ///< since the process started
  std::int64_t pressure_calls = 0;  ///< times a pressure handler was asked for room
};

}  // namespace snug::memory
