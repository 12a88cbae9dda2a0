#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/ops/rms_norm.h"

namespace snug::models {

/// Root-mean-square normalization (Zhang and Sennrich 2019) over the last dimension, computed in fp32. Its parameter
/// heeds a ShapesOnlyScope.
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(std::int64_t width, double epsilon);

  /// x (..., width) -> the same
  at::Tensor forward(const at::Tensor& x);
  /// See ops::rms_norm_of_stream.
  ops::StreamAndNormalized of_stream(const at::Tensor& x, const at::Tensor& delta = {});

  at::Tensor weight;

 private:
  double epsilon_;
};
TORCH_MODULE(RmsNorm);

}  // namespace snug::models
