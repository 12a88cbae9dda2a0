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

/// Hashes of the contents of a storage, block by block, so that a difference has a place.
struct BlockHashes {
  static constexpr Bytes kBlock = 4096;
  std::vector<std::uint64_t> blocks;
  std::int64_t item_size = 1;  ///< bytes of an element, for messages

  /// Of the first `bytes` bytes; on all of LibTorch's threads. Reads another device's memory through a copy.
  static BlockHashes of(const c10::Storage& storage, Bytes bytes, std::int64_t item_size);

  /// The first block that differs.
  [[nodiscard]] std::optional<std::size_t> first_difference(const BlockHashes& other) const;
};

}  // namespace snug::record
