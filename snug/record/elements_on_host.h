#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/owned_contents.h"

namespace snug::record {

/// Reads a strided tensor's elements without allocating memory that a budget counts: the reader may be the one that
/// makes room in it. The elements are ordered by stride, the largest first, so that a dense tensor is read in the
/// order of its memory; those of a step have the same order each time. Contents of another device are copied to the
/// host, with the bytes between them. The tensor must keep its memory and contents for the life of this object.
class ElementsOnHost {
 public:
  explicit ElementsOnHost(const at::Tensor& tensor);

  [[nodiscard]] Bytes bytes() const noexcept { return bytes_; }
  [[nodiscard]] Bytes item_size() const noexcept { return item_size_; }
  /// `length` bytes of the elements from the `begin`-th on: in place where they are contiguous, else copied to
  /// `buffer`, which has room for them. Both are multiples of item_size(). Any thread.
  [[nodiscard]] std::span<const std::byte> read(Bytes begin, Bytes length, std::byte* buffer) const;
  /// The tensor's index of the element that is the `place`-th in the order.
  [[nodiscard]] std::vector<std::int64_t> index_of(std::int64_t place) const;

 private:
  struct Dimension {
    std::int64_t size, stride;  // in elements
    std::size_t of_tensor;
  };

  memory::ContentsThere there_;
  std::vector<std::byte> copied_;
  const std::byte* data_ = nullptr;
  Bytes item_size_, bytes_;
  std::size_t dims_;               // of the tensor
  std::vector<Dimension> order_;   // largest stride first, without those of size 1
  std::vector<Dimension> merged_;  // the same, neighbours that lie contiguously as one
};

}  // namespace snug::record
