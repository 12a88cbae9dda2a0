#include "snug/models/linear.h"

#include <torch/types.h>

namespace snug::models {

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool has_bias, double deviation)
    : weight(register_parameter("weight", torch::empty({out, in}).normal_(0, deviation))) {
  if (has_bias) bias = register_parameter("bias", torch::zeros({out}));
}

at::Tensor LinearImpl::forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

}  // namespace snug::models
