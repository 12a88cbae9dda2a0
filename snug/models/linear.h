#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace snug::models {

/// y = x W^T + b, with the names of torch::nn::Linear. The bias is part of the multiplication, where torch::nn::Linear
/// adds it in a second pass over inputs of three dimensions.
class LinearImpl : public torch::nn::Module {
 public:
  /// Weight (out, in), drawn from a normal distribution of that deviation; bias (out) of zeros.
  LinearImpl(std::int64_t in, std::int64_t out, bool bias, double deviation = 0.02);

  /// x (..., in) -> (..., out)
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;  ///< bias is undefined when there is none
};
TORCH_MODULE(Linear);

}  // namespace snug::models
