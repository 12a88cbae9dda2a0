#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

namespace snug::testing {

/// The loss that `run` returns and all gradients that it leaves, as the host has them: from a seed, and none is left.
inline std::vector<at::Tensor> seeded_step(torch::nn::Module& net, const std::function<at::Tensor()>& run) {
  torch::manual_seed(5);
  net.zero_grad();
  std::vector<at::Tensor> found{run().detach().cpu()};
  for (const at::Tensor& p : net.parameters()) found.push_back(p.grad().cpu());
  net.zero_grad();
  return found;
}

}  // namespace snug::testing
