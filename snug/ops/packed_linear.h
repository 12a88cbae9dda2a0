#pragma once

#include <ATen/core/Tensor.h>

#include "snug/ops/packed_matrix.h"

namespace snug::ops {

/// y = x W^T for a packed W (out, in): x (..., in) -> (..., out), of x's type. W is decoded a few rows at a time, in
/// the forward and again in the backward pass, and never stored; autograd saves nothing but the blocks. Differentiable
/// once, with respect to x (Dettmers et al. 2023, of a frozen base). Under autocast x is cast as for at::linear.
at::Tensor packed_linear(const at::Tensor& x, const PackedMatrix& matrix);

}  // namespace snug::ops
