#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace snug::state {

/// A tensor in a file that was opened and checked, but not read.
struct StoredTensor {
  at::ScalarType dtype;  ///< of what read() returns
  std::vector<std::int64_t> shape;
  /// The tensor, on the CPU. It may be a view of the mapped file, which it keeps open; a write into it does not reach
  /// the file. Safe from any number of threads.
  std::function<at::Tensor()> read;
};

/// The tensors of one or more files by name.
using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

}  // namespace snug::state
