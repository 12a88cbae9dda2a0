#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "snug/models/linear.h"

namespace snug::models {

/// A Linear with a bias that is called `dense`, as in the encoders of transformers.
class DenseImpl : public torch::nn::Module {
 public:
  DenseImpl(std::int64_t in, std::int64_t out) : dense_(register_module("dense", Linear(in, out, true))) {}

  /// x (..., in) -> (..., out)
  at::Tensor forward(const at::Tensor& x) { return dense_(dense_->enter(x)); }

 private:
  Linear dense_;
};
TORCH_MODULE(Dense);

}  // namespace snug::models
