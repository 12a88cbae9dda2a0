#pragma once

#include <torch/torch.h>

#include <memory>
#include <vector>

namespace snug::programs {

/// The modules that layer instructions call, freshly initialized.
std::vector<std::shared_ptr<torch::nn::Module>> make_layers();

}  // namespace snug::programs
