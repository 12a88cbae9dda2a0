#pragma once

#include <torch/torch.h>

#include "snug/ops/packed_matrix.h"

namespace snug::testing {

/// Q4_1 blocks of random nibbles, with scales and offsets around 0.01.
inline ops::PackedMatrix random_packed(std::int64_t rows, std::int64_t columns) {
  const at::Tensor scales = torch::rand({rows, columns / 32, 2}).sub_(0.5).mul_(0.02).to(torch::kHalf);
  const at::Tensor nibbles = torch::randint(0, 256, {rows, columns / 32, 16}, torch::kByte);
  const at::Tensor blocks = torch::cat({scales.view(torch::kByte), nibbles}, 2).view({rows, -1});
  return {ops::BlockFormat::Q4_1, blocks};
}

/// Rounded to blocks of 8 bits.
inline ops::PackedMatrix packed_of(const at::Tensor& weight) {
  constexpr std::int64_t kBlock = 32;
  const at::Tensor blocks = weight.detach().view({weight.size(0), -1, kBlock});
  const at::Tensor scale = (blocks.abs().amax(-1, true) / 127).to(at::kHalf);
  const at::Tensor numbers = (blocks / scale.to(at::kFloat).clamp_min(1e-9)).round().to(at::kChar);
  const at::Tensor bytes = torch::cat({scale.view(at::kByte), numbers.view(at::kByte)}, -1).view({weight.size(0), -1});
  return ops::packed_matrix(ops::BlockFormat::Q8_0, weight.sizes().vec(), bytes.contiguous().view(-1));
}

inline at::Tensor plain(const ops::PackedMatrix& m) { return ops::unpack(m.blocks, m.format); }

}  // namespace snug::testing
