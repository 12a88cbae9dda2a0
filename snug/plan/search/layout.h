#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::plan {

/// A block of memory that is taken at one moment and there until another.
struct TimedBlock {
  Bytes bytes = 0;
  std::int64_t begin = 0, end = 0;  ///< [begin, end)
};

/// Where blocks lie in one range of memory: those that are there at the same time beside each other.
struct Layout {
  std::vector<Bytes> offsets;  ///< by block
  Bytes bytes = 0;             ///< of the range
};

/// What the blocks take together where they take most: no layout has fewer bytes.
[[nodiscard]] Bytes highest(std::span<const TimedBlock> blocks);

/// A part of the range that is somebody else's all the time. Parts do not overlap.
struct Occupied {
  Bytes offset = 0, bytes = 0;
};

/// A layout of few bytes, beside what is occupied. Which has the fewest is NP-hard (Garey and Johnson 1979, SR2,
/// "dynamic storage allocation"): of several orders, with each block at the lowest place or in the smallest gap, the
/// best, and better ones of it, in which the blocks at the top are placed first, until it is as low as highest() or
/// about a second has been spent. Of more than 28,000 blocks, for which one order would take longer, each lies in the
/// smallest gap that is free when it begins: n log n. The same for the same blocks.
[[nodiscard]] Layout lay_out(std::span<const TimedBlock> blocks, std::span<const Occupied> occupied = {});

}  // namespace snug::plan
