#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

namespace snug::train {

/// How far gradients are from exact ones.
struct GradientError {
  std::string layer;    ///< the module whose parameters they are of; "" for all together
  double relative = 0;  ///< the norm of the differences over that of the exact ones; 0 where both are, NaN where one of
                        ///< the others is none or infinite
};

/// Adds up differences of gradients, by layer and over steps.
class GradientErrors {
 public:
  /// Of a parameter, by its name in the model. Any floating-point types, of one size. One whose exact ones are not all
  /// finite, as where a loss scale is too high, is left out.
  void add(const std::string& parameter, const at::Tensor& exact, const at::Tensor& found);
  /// By layer, the largest first, and in front of them those that are NaN.
  [[nodiscard]] std::vector<GradientError> by_layer() const;
  [[nodiscard]] GradientError all() const;

 private:
  struct Sums {
    double of_differences = 0, of_exact = 0;  // of squares
    [[nodiscard]] double relative() const;
  };
  std::map<std::string, Sums> layers_;
};

}  // namespace snug::train
