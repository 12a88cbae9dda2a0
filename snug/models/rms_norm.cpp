#include "snug/models/rms_norm.h"

#include <torch/types.h>

#include "snug/models/parameter.h"

namespace snug::models {

RmsNormImpl::RmsNormImpl(std::int64_t width, double epsilon)
    : weight(register_parameter("weight", constant_parameter({width}, 1))), epsilon_(epsilon) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& x) { return ops::rms_norm(x, weight, epsilon_); }

ops::StreamAndNormalized RmsNormImpl::of_stream(const at::Tensor& x, const at::Tensor& delta) {
  return ops::rms_norm_of_stream(x, delta, weight, epsilon_);
}

}  // namespace snug::models
