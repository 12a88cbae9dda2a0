#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace snug::record {

/// A hash of a tensor's elements (XXH3, 64 bit), whatever their strides; equal bits have equal hashes. Shape and dtype
/// do not count.
std::uint64_t contents_hash(const at::Tensor& tensor);

}  // namespace snug::record
