#pragma once

#include <ATen/core/Tensor.h>

namespace snug::ops {

/// at::dropout (Srivastava et al. 2014): the same random draws and the same bits, both ways. On CPUs LibTorch keeps a
/// number for each element; here it is a bit. Differentiable any number of times.
at::Tensor dropout(const at::Tensor& x, double probability, bool is_training);

}  // namespace snug::ops
