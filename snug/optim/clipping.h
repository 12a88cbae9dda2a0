#pragma once

#include <ATen/core/Tensor.h>

#include <variant>
#include <vector>

#include "snug/optim/gradient_norm.h"

namespace snug::optim {

/// Gradients stay as they are.
struct NoClipping {};
/// All gradients are scaled so that their joint norm is at most `limit`: torch.nn.utils.clip_grad_norm_.
struct ClipNorm {
  double limit = 1;  ///< positive
  double order = 2;  ///< 1, 2 or infinity, the largest amount
};
/// Each element is brought between -limit and limit: torch.nn.utils.clip_grad_value_.
struct ClipValue {
  double limit = 1;  ///< positive
};
using Clipping = std::variant<NoClipping, ClipNorm, ClipValue>;

/// The joint norm of all gradients; see joint_norm().
double gradient_norm(const std::vector<at::Tensor>& parameters, double order = 2, const OtherParts& others = {});

/// Clips the gradients in place. Returns their joint norm before: of the order that they are clipped by, else the
/// 2-norm. What is not finite is not clipped by a norm.
double clip_gradients(const std::vector<at::Tensor>& parameters, const Clipping& clipping,
                      const OtherParts& others = {});

}  // namespace snug::optim
