#pragma once

#include <torch/torch.h>

#include <vector>

#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug::testing {

/// Layers of one width, each with an activation.
struct Net {
  explicit Net(int linear_layers = 8) : layers(torch::nn::Sequential()) {
    torch::manual_seed(5);
    for (int i = 0; i < linear_layers; ++i) {
      layers->push_back(torch::nn::Linear(256, 256));
      layers->push_back(torch::nn::GELU());
    }
  }
  at::Tensor operator()(const at::Tensor& x) { return layers->forward(x).pow(2).mean(); }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> all;
    for (const auto& p : layers->parameters()) all.push_back(p.grad().defined() ? p.grad().clone() : at::Tensor());
    return all;
  }
  std::vector<at::Tensor> plain(const at::Tensor& x) {
    layers->zero_grad();
    (*this)(x).backward();
    auto all = gradients();
    layers->zero_grad();
    return all;
  }
  torch::nn::Sequential layers;
};

inline Bytes unplanned_peak(Net& net, const at::Tensor& x) {
  return plan::make_plan(replay::record_step([&] { return net(x); }, test_memory()).graph, "none", std::nullopt)
      .predicted_peak;
}

}  // namespace snug::testing
