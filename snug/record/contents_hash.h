#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/record/elements_on_host.h"

namespace snug::record {

/// A hash of a tensor's elements (XXH3, 64 bit), whatever their strides; equal bits have equal hashes. Shape and dtype
/// do not count.
std::uint64_t contents_hash(const at::Tensor& tensor);

/// A hash of some of a storage's bytes: of all of them up to 4 KiB, else of 64 places that lie evenly over it. What
/// fills the memory anew changes it; what changes a part may not. None for memory that the CPU does not reach.
std::optional<std::uint64_t> contents_sample(const c10::Storage& storage);

/// Hashes of a tensor's elements in the order of ElementsOnHost, block by block, so that a difference has a place.
struct BlockHashes {
  static constexpr Bytes kBlock = 4096;
  std::vector<std::uint64_t> blocks;
  std::int64_t item_size = 1;  ///< bytes of an element, for messages

  /// On all of LibTorch's threads.
  static BlockHashes of(const ElementsOnHost& elements);

  /// The first block that differs.
  [[nodiscard]] std::optional<std::size_t> first_difference(const BlockHashes& other) const;
};

}  // namespace snug::record
