#pragma once

#include <ATen/core/Tensor.h>

#include "snug/ops/kernels/activation.h"

namespace snug::ops {

/// f(x), by LibTorch's operator: at::gelu or at::silu.
at::Tensor activated(const at::Tensor& x, Activation f);

/// The gradient of x, of that of f(x): at::gelu_backward or at::silu_backward, or where gradients are recorded
/// something that can be differentiated again.
at::Tensor slope_times(const at::Tensor& of_y, const at::Tensor& x, Activation f);

/// f(x) times `factor`, of one shape and type: `at::mul` of `activated`, bit for bit, but only x and the factor are
/// kept for the backward pass, which computes f(x) again beside its slope. Differentiable any number of times.
at::Tensor gated(const at::Tensor& x, const at::Tensor& factor, Activation f);

/// Of f(x) and, where it is defined, the factor that it is multiplied by.
struct ActivationGradients {
  at::Tensor y;  ///< f(x), times the factor
  at::Tensor of_x;
  at::Tensor of_factor;  ///< undefined without one
};

/// Whether CPU kernels here have the bits of this LibTorch's operator and its gradient; if not, those are called.
bool has_activation_kernel(Activation f, at::ScalarType type);

/// Not differentiable; the bits are those of LibTorch's operators called one after the other. In one pass on the CPU
/// where every thread of theirs has whole vectors, and then the gradient of x is written to `room`, which may be of_y,
/// if it is defined.
ActivationGradients differentiate(const at::Tensor& x, const at::Tensor& factor, Activation f, const at::Tensor& of_y,
                                  const at::Tensor& room = {});

}  // namespace snug::ops
