#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "snug/ops/kernels/block_format.h"

namespace snug::ops {

struct BlockLayout {
  BlockFormat format;
  std::string_view name;
  std::size_t elements;  ///< in one block
  std::size_t bytes;     ///< of one block
};

/// Null when the number is none of those above.
const BlockLayout* find_block_layout(std::uint32_t number);
const BlockLayout& block_layout(BlockFormat format);

}  // namespace snug::ops
