#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace snug::optim {

/// What puts together what processes have of which each has a part of the gradients: of each number the sum, or the
/// largest, over all of them, in place. Empty: there are no others.
struct OtherParts {
  std::function<void(std::span<std::int64_t>)> add_up{}, largest{};
  /// Whether a parameter, by its place among them, counts here: not where another process has the same gradient, and
  /// says so. Empty: all do. Of what is called with parameters.
  std::function<bool(std::size_t parameter)> counts{};
};

/// The joint norm of tensors, of order 1, 2 or infinity, in fp64; 0 without any, NaN or infinity where an element is.
/// Amounts are added up without rounding but for blocks of kNormBlock elements: the bits are the same however tensors
/// are divided at multiples of that, among threads or among processes. (Of tensors that are not on the CPU it is that
/// of their norms as LibTorch has them, in fp32 at least.) Throws UsageError for another order.
double joint_norm(const std::vector<at::Tensor>& tensors, double order, const OtherParts& others = {});

}  // namespace snug::optim
