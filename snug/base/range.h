#pragma once

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>

namespace snug {

inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

/// Numbers between two limits.
struct Range {
  double low;
  double high = kNoLimit;
  bool low_excluded = false;
  bool high_excluded = false;
};

inline constexpr Range kFraction{.low = 0, .high = 1, .high_excluded = true};
inline constexpr Range kNotNegative{.low = 0};
inline constexpr Range kPositive{.low = 0, .low_excluded = true};

/// The end of "it must be ...".
inline std::string describe(const Range& range) {
  const std::string low = fmt::format("{} {}", range.low_excluded ? "more than" : "at least", range.low);
  if (range.high == kNoLimit) return low;
  return fmt::format("{} and {} {}", low, range.high_excluded ? "less than" : "at most", range.high);
}

/// Whether a number is in it; what is not finite is in none.
template <class Number>
bool keeps(const Range& range, const Number& number) {
  const auto value = static_cast<double>(number);
  const bool above = range.low_excluded ? value > range.low : value >= range.low;
  const bool below = range.high_excluded ? value < range.high : value <= range.high;
  return above && below && std::isfinite(value);
}

}  // namespace snug
