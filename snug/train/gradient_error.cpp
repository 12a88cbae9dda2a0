#include "snug/train/gradient_error.h"

#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace snug::train {
namespace {

double sum_of_squares(const at::Tensor& tensor) { return tensor.square().sum().item<double>(); }

}  // namespace

double GradientErrors::Sums::relative() const {
  if (std::isnan(of_differences)) return of_differences;
  if (of_exact > 0) return std::sqrt(of_differences / of_exact);
  return of_differences > 0 ? std::numeric_limits<double>::infinity() : 0;
}

void GradientErrors::add(const std::string& parameter, const at::Tensor& exact, const at::Tensor& found) {
  const std::size_t dot = parameter.rfind('.');
  const at::Tensor a = exact.to(at::kDouble), b = found.to(at::kDouble);
  const double size = sum_of_squares(a), difference = sum_of_squares(at::sub(a, b));
  if (!std::isfinite(size)) return;
  Sums& sums = layers_[dot == std::string::npos ? parameter : parameter.substr(0, dot)];
  sums.of_differences += std::isfinite(difference) ? difference : std::numeric_limits<double>::quiet_NaN();
  sums.of_exact += size;
}

std::vector<GradientError> GradientErrors::by_layer() const {
  std::vector<GradientError> errors;
  for (const auto& [layer, sums] : layers_) errors.push_back({layer, sums.relative()});
  std::ranges::stable_sort(errors, std::ranges::greater(), [](const GradientError& error) {
    return std::isnan(error.relative) ? std::numeric_limits<double>::infinity() : error.relative;
  });
  return errors;
}

GradientError GradientErrors::all() const {
  Sums all;
  for (const auto& [layer, sums] : layers_) {
    all.of_differences += sums.of_differences;
    all.of_exact += sums.of_exact;
  }
  return {.layer = "", .relative = all.relative()};
}

}  // namespace snug::train
