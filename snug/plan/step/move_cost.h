#pragma once

#include <optional>

#include "snug/base/bytes.h"

namespace snug::plan {

/// What moving values out of the device's memory takes, and how much may be there.
struct MoveCost {
  double out_seconds_per_byte = 0, in_seconds_per_byte = 0;
  double seconds_per_copy = 0;
  bool overlaps = false;        ///< copies go on while the device computes, one at a time each way; else the step does
                                ///< nothing else meanwhile
  std::optional<Bytes> budget;  ///< for all that is there at once; none: as much as there is

  [[nodiscard]] double out(Bytes bytes) const {
    return seconds_per_copy + out_seconds_per_byte * static_cast<double>(bytes);
  }
  [[nodiscard]] double in(Bytes bytes) const {
    return seconds_per_copy + in_seconds_per_byte * static_cast<double>(bytes);
  }
  friend bool operator==(const MoveCost&, const MoveCost&) = default;
};

}  // namespace snug::plan
