#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "snug/ops/row_tiles.h"

namespace snug::ops {

/// Mean cross-entropy in nats of the logits x W^T against `targets`, without ever having all logits: they are made for
/// a few rows of x at a time, and with them, in the forward pass, the gradients that will be asked for (as in Liger
/// Kernel, Hsu et al. 2024). x (..., in), W (vocabulary, in), targets int64 of x's other dimensions; those of -100 do
/// not count. A scalar, fp32. Logits have the type of x and W, and are raised to fp32 before the softmax. When no
/// target counts the result is nan, as at::cross_entropy_loss has it. Differentiable once, with respect to x and a
/// plain W; under autocast both are cast as for at::linear. Memory: about 32 MiB, or one row of logits, beside the
/// gradients of x and, where it is asked for, of W.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Matrix& weight, const at::Tensor& targets);

}  // namespace snug::ops
