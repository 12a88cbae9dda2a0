#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace snug::optim {

/// 256 numbers between -1, or 0, and 1 that stand for others: dynamic 8-bit quantization (Dettmers et al. 2022, "8-bit
/// Optimizers via Block-wise Quantization"). They lie denser the nearer they are to zero: each power of ten down to
/// 1e-6 has twice as many as the one below. Made once; safe from any number of threads.
class BlockwiseCode {
 public:
  static const BlockwiseCode& with_sign();
  static const BlockwiseCode& without_sign();

  [[nodiscard]] float value(std::uint8_t code) const { return values_[code]; }
  /// The nearest, the smaller of two, of a number from -1 or 0 to 1.
  [[nodiscard]] std::uint8_t nearest(float number) const;

 private:
  explicit BlockwiseCode(bool sign);

  std::array<float, 256> values_;    // ascending
  std::array<float, 256> up_to_;     // the largest number for which each stands
  std::vector<std::uint8_t> first_;  // code of the smallest number with the same sign and upper bits
};

}  // namespace snug::optim
