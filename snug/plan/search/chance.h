#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>

namespace snug::plan {

/// Draws that are the same everywhere and each time: the standard's distributions differ between libraries, and plans
/// must not.
class Chance {
 public:
  explicit Chance(std::uint32_t seed) : random_(seed) {}

  /// From 0 to `sides` - 1; there must be one.
  std::uint32_t roll(std::size_t sides) { return static_cast<std::uint32_t>(random_() % sides); }
  /// At least 0, and below 1.
  double fraction() { return static_cast<double>(random_()) / 4294967296.0; }
  /// There must be one; it is the range's.
  template <class Range>
  const auto& one_of(Range& range) {
    return range[roll(std::size(range))];
  }

 private:
  std::mt19937 random_;
};

}  // namespace snug::plan
