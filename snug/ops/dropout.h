#pragma once

#include <ATen/core/Tensor.h>

namespace snug::ops {

/// at::dropout in training (Srivastava et al. 2014); x itself where the probability is 0. The same random draws and the
/// same bits, both ways. On CPUs LibTorch keeps a number for each element; here it is a bit. Differentiable any number
/// of times.
at::Tensor dropout(const at::Tensor& x, double probability);

}  // namespace snug::ops
