#pragma once

#include <cstdint>

namespace snug::ops {

/// How GGUF files encode the elements of a tensor: in blocks along its last dimension, each with a scale of its own.
/// The values are the numbers that ggml gives them.
enum class BlockFormat : std::uint32_t {
  F32 = 0,
  F16 = 1,
  Q4_0 = 2,
  Q4_1 = 3,
  Q5_0 = 6,
  Q5_1 = 7,
  Q8_0 = 8,
  Q4_K = 12,
  Q5_K = 13,
  Q6_K = 14,
  BF16 = 30,
};

}  // namespace snug::ops
