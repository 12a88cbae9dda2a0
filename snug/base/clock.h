#pragma once

#include <chrono>

namespace snug {

/// Seconds on a clock that never goes back, from an arbitrary start.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace snug
