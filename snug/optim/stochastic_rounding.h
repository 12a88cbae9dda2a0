#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace snug::optim {

/// What the chances of one rounding come from.
struct RoundingChances {
  std::uint64_t seed = 0, step = 0, tensor = 0;
  std::uint64_t first = 0;  ///< element of the tensor, where it is a part
};

/// Writes fp32 numbers to a tensor in bf16 of the same shape, each as one of its two neighbours there, with the chances
/// that keep its mean; what bf16 has, infinities and NaN stay what they are. The same for the same chances, whatever
/// the number of threads. What lies past the largest number may become infinite, as other rounding does.
void round_stochastically(const at::Tensor& from, const at::Tensor& to, const RoundingChances& chances);

}  // namespace snug::optim
