#include "snug/models/layer_norm.h"

#include <torch/types.h>

#include "snug/models/parameter.h"

namespace snug::models {

LayerNormImpl::LayerNormImpl(std::int64_t width, double epsilon)
    : weight(register_parameter("weight", constant_parameter({width}, 1))),
      bias(register_parameter("bias", constant_parameter({width}, 0))),
      epsilon_(epsilon) {}

at::Tensor LayerNormImpl::forward(const at::Tensor& x) {
  return at::layer_norm(x, weight.sizes(), weight, bias, epsilon_);
}

}  // namespace snug::models
