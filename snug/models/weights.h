#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <vector>

namespace snug::models {

/// All that a model multiplies with and looks up: its parameters, in their order, and behind them the blocks of packed
/// weights (see LinearImpl::pack), which are no parameters. One that two modules share comes once.
std::vector<at::Tensor> weights_of(const torch::nn::Module& model);

}  // namespace snug::models
