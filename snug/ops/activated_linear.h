#pragma once

#include <ATen/core/Tensor.h>

#include "snug/ops/kernels/activation.h"

namespace snug::ops {

/// What comes before a linear layer: f(x), or f(x) times a factor of its shape and type where that is defined, as in
/// gated feed-forward parts (Shazeer 2020).
struct ActivatedInput {
  at::Tensor x;
  Activation f = Activation::Gelu;
  at::Tensor factor = {};
};

/// at::linear(f(x) * factor, weight, bias), bit for bit where x is contiguous, but what the product is of, as large as
/// x, is not kept: the backward pass computes it again, in one pass with its gradient. Weight (out, in), bias (out) or
/// undefined; under autocast they, and f(x), are cast as at::linear casts them. Differentiable any number of times.
at::Tensor activated_linear(const ActivatedInput& input, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace snug::ops
