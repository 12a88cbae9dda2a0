#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

namespace snug::replay {

/// A tensor of a front end around others, as Python's DTensor is: what stands in its place are these.
struct WrappedTensor {
  std::vector<at::Tensor> inside;
  /// The tensor again, of such that have the same contents; outside autograd. From any thread, while it lives.
  std::function<at::Tensor(const std::vector<at::Tensor>& inside)> wrap;
};

/// Takes a tensor apart, as the front end does; nothing for one that it cannot take apart, and in C++.
std::optional<WrappedTensor> unwrapped(const at::Tensor& tensor);

/// Called once, by the front end when it is loaded.
using Unwrap = std::optional<WrappedTensor> (*)(const at::Tensor& tensor);
void set_unwrap(Unwrap unwrap) noexcept;

}  // namespace snug::replay
