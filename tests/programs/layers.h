#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

namespace snug::programs {

/// The modules that layer instructions call, freshly initialized.
std::vector<std::shared_ptr<torch::nn::Module>> make_layers();

/// Calls each of them once on some input, for what operators there are; the sum of what they give.
at::Tensor call_every_layer(const std::vector<std::shared_ptr<torch::nn::Module>>& modules);

}  // namespace snug::programs
