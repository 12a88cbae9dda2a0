#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/part_runs.h"

namespace snug::state {

/// A tensor that is written, and need not be in memory as a whole.
struct TensorSource {
  /// Hands on its bytes, in their order, in any number of pieces.
  using WriteBytes = std::function<void(const std::function<void(std::span<const std::byte>)>& write)>;

  TensorSource(at::ScalarType of_type, std::vector<std::int64_t> sizes, WriteBytes write)
      : dtype(of_type), shape(std::move(sizes)), bytes(std::move(write)) {}
  /// One that must stay as it is until it is written, on any device and of any strides: a copy of it at most is taken.
  TensorSource(const at::Tensor& tensor);  // NOLINT(google-explicit-constructor): most are there

  [[nodiscard]] std::size_t nbytes() const {
    std::size_t count = c10::elementSize(dtype);
    for (const std::int64_t size : shape) count *= static_cast<std::size_t>(size);
    return count;
  }

  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  WriteBytes bytes;
};
/// In the order in which they are to be written.
using NamedSources = std::vector<std::pair<std::string, TensorSource>>;
using TensorSources = std::map<std::string, TensorSource, std::less<>>;

/// Elements of a tensor, in their order: some of those that the runs have.
struct TensorPart {
  std::string name;
  at::Tensor part;                  ///< contiguous
  std::vector<std::int64_t> shape;  ///< of the whole
  std::int64_t first = 0;           ///< element of the runs that it begins with
  PartRuns runs{};                  ///< of the whole
};
/// Writes a part's elements of a whole, which is flat and on the CPU.
void copy_from_whole(const at::Tensor& whole, const TensorPart& part);

/// Tensors of which several processes have parts.
struct DividedTensors {
  std::vector<TensorPart> mine;
  TensorSources all;  ///< the same in all processes, but that one alone need be able to write them
};

}  // namespace snug::state
