#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace snug::models {

/// While it lives, parameters of modules that are made on this thread have shape and type but no contents and four
/// bytes of memory: all nan, expanded from one number. For weights that come from a file; state::load_weights gives
/// them memory. Scopes nest.
class ShapesOnlyScope {
 public:
  explicit ShapesOnlyScope(at::ScalarType dtype);
  ShapesOnlyScope(const ShapesOnlyScope&) = delete;
  ShapesOnlyScope& operator=(const ShapesOnlyScope&) = delete;
  ~ShapesOnlyScope();

 private:
  at::ScalarType before_;
};

/// A new parameter's tensor: drawn from a normal distribution around zero, or of one value, fp32; or of a
/// ShapesOnlyScope.
at::Tensor normal_parameter(at::IntArrayRef sizes, double deviation);
at::Tensor constant_parameter(at::IntArrayRef sizes, double value);

/// The standard deviation that GPT-2, BERT and those after them begin with.
inline constexpr double kInitialDeviation = 0.02;
/// Of weights whose products are added to the residual stream: smaller with depth (Radford et al. 2019, 2.3).
double residual_deviation(std::int64_t layers);

}  // namespace snug::models
