#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace snug {

/// The sum of numbers that are not negative, without any rounding until its value is asked for: the same bits in
/// whatever order and parts they are added up, as in processes of which each has some (a long accumulator, Kulisch
/// 1981). Of at most 2^31 numbers.
class ExactSum {
 public:
  void add(double number);
  void add(const ExactSum& other);
  /// The nearest double; infinity where there was one or the sum has grown beyond; NaN where one was NaN or negative.
  [[nodiscard]] double value() const;

  /// As integers of which those of several sums can be added up one by one: the sum of all, see add().
  [[nodiscard]] std::span<std::int64_t> numbers() { return limbs_; }

 private:
  // Of 32 bits each, the first from the smallest number that there is on; above it what has been carried over. Behind
  // them how many were infinite, and how many were none.
  static constexpr std::size_t kLimbs = 68;
  std::array<std::int64_t, kLimbs + 2> limbs_{};
};

}  // namespace snug
