#include "snug/optim/clipping.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "snug/base/match.h"
#include "snug/optim/few_bits.h"

namespace snug::optim {
namespace {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  return gradients;
}

double norm_of(const std::vector<at::Tensor>& gradients, double order) {
  if (gradients.empty()) return 0;
  // A norm in bf16 is rounded before it is added up, and those of adapters beside it are in fp32.
  const auto dtype = std::ranges::any_of(gradients, has_few_bits) ? std::optional(at::kFloat) : std::nullopt;
  std::vector<at::Tensor> norms = at::_foreach_norm(gradients, order, dtype);
  for (at::Tensor& norm : norms) norm = norm.to(norms.front().device());
  return at::linalg_vector_norm(at::stack(norms), order).item<double>();
}

}  // namespace

double gradient_norm(const std::vector<at::Tensor>& parameters, double order) {
  const at::NoGradGuard no_grad;
  return norm_of(gradients_of(parameters), order);
}

double clip_gradients(const std::vector<at::Tensor>& parameters, const Clipping& clipping) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  const auto* const by_norm = std::get_if<ClipNorm>(&clipping);
  const double norm = norm_of(gradients, by_norm != nullptr ? by_norm->order : 2);
  if (gradients.empty()) return norm;
  std::visit(Match{[](const NoClipping&) {},
                   [&](const ClipNorm& clip) {
                     if (norm > clip.limit && std::isfinite(norm))
                       at::_foreach_mul_(gradients, clip.limit / (norm + 1e-6));
                   },
                   [&](const ClipValue& clip) {
                     at::_foreach_clamp_min_(gradients, -clip.limit);
                     at::_foreach_clamp_max_(gradients, clip.limit);
                   }},
             clipping);
  return norm;
}

}  // namespace snug::optim
