#pragma once

// Of the files in this folder: see lanes.h.
#include <algorithm>
#include <bit>
#include <cstdint>

namespace snug::ops::kernels {
inline namespace CPU_CAPABILITY {

/// The sum of term(0) to term(n - 1) as at::sum adds up a row of contiguous numbers, bit for bit: vectors of 32 bytes,
/// whatever the instruction set, in four columns of partial sums, each of which is added to one of a higher level as
/// soon as it has so many terms (ATen/native/cpu/SumKernel.cpp). `n` is at least a vector.
template <typename Math>
class LibTorchSum {
 public:
  static constexpr std::int64_t kVec = 32 / sizeof(Math);

  template <typename Term>
  static Math of(std::int64_t n, const Term& term) {
    const std::int64_t vectors = n / kVec, rows = vectors / kColumns;
    Math level[kLevels][kRow] = {};
    const auto add_row = [&](std::int64_t row) {
      for (std::int64_t k = 0; k < kRow; ++k) level[0][k] += term(row * kRow + k);
    };
    const int power = std::max(4, ceiling_of_log2(rows) / kLevels);
    const std::int64_t step = std::int64_t{1} << power;
    std::int64_t row = 0;
    while (row + step <= rows) {
      for (std::int64_t i = 0; i < step; ++i) add_row(row++);
      for (int j = 1; j < kLevels; ++j) {
        raise(level[j - 1], level[j]);
        if ((row & ((step - 1) << (j * power))) != 0) break;
      }
    }
    while (row < rows) add_row(row++);
    for (int j = 1; j < kLevels; ++j) {
      for (std::int64_t k = 0; k < kRow; ++k) level[0][k] += level[j][k];
    }
    Math* const sums = level[0];
    for (std::int64_t v = rows * kColumns; v < vectors; ++v) {
      for (std::int64_t k = 0; k < kVec; ++k) sums[k] += term(v * kVec + k);
    }
    for (std::int64_t c = 1; c < kColumns; ++c) {
      for (std::int64_t k = 0; k < kVec; ++k) sums[k] += sums[c * kVec + k];
    }
    Math sum = 0;
    for (std::int64_t i = vectors * kVec; i < n; ++i) sum += term(i);
    for (std::int64_t k = 0; k < kVec; ++k) sum += sums[k];
    return sum;
  }

 private:
  static constexpr int kLevels = 4;
  static constexpr std::int64_t kColumns = 4, kRow = kColumns * kVec;

  static int ceiling_of_log2(std::int64_t n) { return n <= 2 ? 1 : std::bit_width(static_cast<std::uint64_t>(n - 1)); }

  static void raise(Math* from, Math* to) {
    for (std::int64_t k = 0; k < kRow; ++k) {
      to[k] += from[k];
      from[k] = 0;
    }
  }
};

}  // namespace CPU_CAPABILITY
}  // namespace snug::ops::kernels
