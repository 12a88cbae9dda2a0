#pragma once

#include <optional>

#include "snug/base/bytes.h"

namespace snug::memory {

/// What has left a device's memory for one place, and the most that it may be.
struct TierStats {
  Bytes taken = 0;
  Bytes taken_peak = 0;
  Bytes held = 0;  ///< of the system: taken, and free for the next
  std::optional<Bytes> budget;
};

}  // namespace snug::memory
