#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "snug/state/safetensors.h"

namespace snug::optim {

/// A tensor that make_references.py wrote.
inline at::Tensor reference(const std::string& name) {
  static const state::Safetensors file =
      state::open_safetensors(std::string(SNUG_TESTS) + "/optim/references.safetensors");
  return file.tensors.at(name).read().clone();
}

inline constexpr int kReferenceSteps = 4;
inline constexpr double kReferenceRate = 1e-2;

/// The parameters of these names as the references begin with.
inline std::vector<at::Tensor> reference_parameters(const std::vector<std::string>& names) {
  std::vector<at::Tensor> parameters;
  for (const std::string& name : names) parameters.push_back(reference(name).requires_grad_());
  return parameters;
}

/// Gives them the gradients of a step.
inline void give_reference_gradients(std::vector<at::Tensor>& parameters, const std::vector<std::string>& names,
                                     int step) {
  for (std::size_t i = 0; i < names.size(); ++i)
    parameters[i].mutable_grad() = reference("gradient." + std::to_string(step) + "." + names[i]);
}

}  // namespace snug::optim
