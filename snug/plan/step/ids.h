#pragma once

#include <cstddef>
#include <cstdint>

namespace snug::plan {

/// The position of an operator call in a recorded step, from 0.
using OpId = std::int32_t;

/// A value: the contents of one storage at one version. Numbered as they are first seen, from 0.
using ValueId = std::int32_t;

/// A range of operators that is replayed together. Segment 0 is the whole step.
using SegmentId = std::int32_t;

inline constexpr OpId kNoOp = -1;
inline constexpr ValueId kNoValue = -1;
inline constexpr SegmentId kRootSegment = 0;

/// An id as the index of what arrays have for it.
[[nodiscard]] constexpr std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

}  // namespace snug::plan
