#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "snug/ops/tensor_parallel.h"

namespace snug::ops {

/// What autograd keeps of a group between a forward and its backward pass.
struct HeldGroup : torch::CustomClassHolder {
  explicit HeldGroup(LayerGroup held) : group(std::move(held)) {}
  LayerGroup group;
};

inline void hold_group(torch::autograd::AutogradContext* context, const LayerGroup& group) {
  context->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<HeldGroup>(group));
}
inline TensorGroup& held_group(torch::autograd::AutogradContext* context) {
  const auto capsule = context->saved_data["group"].toCapsule();
  return *static_cast<HeldGroup*>(capsule.get())->group;  // NOLINT(cppcoreguidelines-pro-type-static-cast-downcast)
}

}  // namespace snug::ops
