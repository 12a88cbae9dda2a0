#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace snug::state {

/// A tensor that is written, and need not be in memory as a whole.
struct TensorSource {
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  /// Hands on its bytes, in their order, in any number of pieces.
  std::function<void(const std::function<void(std::span<const std::byte>)>& write)> bytes;
};
using TensorSources = std::map<std::string, TensorSource, std::less<>>;

/// Elements of a tensor in one piece, in their order.
struct TensorPart {
  std::string name;
  at::Tensor part;                  ///< contiguous
  std::vector<std::int64_t> shape;  ///< of the whole
  std::int64_t first = 0;           ///< element of the whole that it begins with
};

/// Tensors of which several processes have parts.
struct DividedTensors {
  std::vector<TensorPart> mine;
  TensorSources all;  ///< the same in all processes, but that one alone need be able to write them
};

/// The tensor, which must stay as it is until it is written, on any device and of any strides: a copy of it at most is
/// taken.
TensorSource source_of(const at::Tensor& tensor);

}  // namespace snug::state
