#include "snug/models/parameter.h"

#include <torch/types.h>

#include <cmath>
#include <limits>

namespace snug::models {
namespace {

thread_local at::ScalarType shapes_of = at::ScalarType::Undefined;  // outside of every scope

bool shapes_only() { return shapes_of != at::ScalarType::Undefined; }

at::Tensor shape(at::IntArrayRef sizes) {
  return torch::full({1}, std::numeric_limits<double>::quiet_NaN(), shapes_of).expand(sizes);
}

}  // namespace

ShapesOnlyScope::ShapesOnlyScope(at::ScalarType dtype) : before_(shapes_of) { shapes_of = dtype; }
ShapesOnlyScope::~ShapesOnlyScope() { shapes_of = before_; }

at::Tensor normal_parameter(at::IntArrayRef sizes, double deviation) {
  return shapes_only() ? shape(sizes) : torch::empty(sizes).normal_(0, deviation);
}

at::Tensor constant_parameter(at::IntArrayRef sizes, double value) {
  return shapes_only() ? shape(sizes) : torch::full(sizes, value);
}

double residual_deviation(std::int64_t layers) {
  return kInitialDeviation / std::sqrt(2.0 * static_cast<double>(layers));
}

}  // namespace snug::models
