#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <random>

namespace snug::testing {

/// Draws that are the same on every platform.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  /// Both included.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 engine_;
};

inline constexpr int kTrials = 100;  // of each half, which run at once

/// How many of them run: all, or as many as SNUG_TRIALS says.
inline int trials() {
  const char* asked = std::getenv("SNUG_TRIALS");
  return asked != nullptr ? std::clamp(std::atoi(asked), 1, kTrials) : kTrials;
}

}  // namespace snug::testing
