#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "snug/base/bytes.h"

namespace snug::record {

/// A hash of a tensor's elements (XXH3, 64 bit), whatever their strides; equal bits have equal hashes. Shape and dtype
/// do not count.
std::uint64_t contents_hash(const at::Tensor& tensor);

/// Hashes of a tensor's elements, block by block, so that a difference has a place.
struct BlockHashes {
  static constexpr Bytes kBlock = 4096;
  std::vector<std::uint64_t> blocks;
  std::int64_t item_size = 1;  ///< bytes of an element, for messages

  /// On all of LibTorch's threads. In the order of memory where the elements lie densely; else, and for other devices,
  /// through a copy.
  static BlockHashes of(const at::Tensor& tensor);

  /// The first block that differs.
  [[nodiscard]] std::optional<std::size_t> first_difference(const BlockHashes& other) const;
};

}  // namespace snug::record
