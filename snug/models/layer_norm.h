#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace snug::models {

/// Layer normalization (Ba et al. 2016) over the last dimension, with the names of torch::nn::LayerNorm. Its parameters
/// heed a ShapesOnlyScope.
class LayerNormImpl : public torch::nn::Module {
 public:
  LayerNormImpl(std::int64_t width, double epsilon);

  /// x (..., width) -> the same
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias;

 private:
  double epsilon_;
};
TORCH_MODULE(LayerNorm);

}  // namespace snug::models
