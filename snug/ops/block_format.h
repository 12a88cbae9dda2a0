#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

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

struct BlockLayout {
  BlockFormat format;
  std::string_view name;
  std::size_t elements;  ///< in one block
  std::size_t bytes;     ///< of one block
};

/// Null when the number is none of those above.
const BlockLayout* find_block_layout(std::uint32_t number);
const BlockLayout& block_layout(BlockFormat format);

/// Decodes whole blocks: blocks.size() / bytes of them, into as many times `elements` floats. Bitwise what ggml's own
/// functions give: products and sums are rounded one by one. Any alignment; safe from any number of threads. Throws
/// Error when the two sizes do not belong together.
void dequantize(BlockFormat format, std::span<const std::uint8_t> blocks, std::span<float> out);

}  // namespace snug::ops
