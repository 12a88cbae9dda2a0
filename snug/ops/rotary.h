#pragma once

#include <ATen/core/Tensor.h>

namespace snug::ops {

/// Rotary position embeddings (Su et al. 2021) in the halves' layout: x * cosines + turned * sines, where `turned` is
/// the second half of the last dimension, negated, before the first. x (batch, heads, positions, width), width even;
/// cosines and sines (positions, width), or (batch, 1, positions, width), without gradients. Bit for bit what those
/// operators give, in one pass each way, and nothing of x's size is kept. The result has the wider type of the two.
/// Differentiable any number of times.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines);

}  // namespace snug::ops
