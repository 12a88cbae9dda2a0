#include "snug/optim/clipping.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_mul.h>

#include <algorithm>
#include <cmath>

#include "snug/base/match.h"
#include "snug/memory/owned_contents.h"

namespace snug::optim {
namespace {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  return gradients;
}

/// Of those that count in their joint norm.
double norm_of(const std::vector<at::Tensor>& parameters, double order, const OtherParts& others) {
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].grad().defined() && (!others.counts || others.counts(i)))
      gradients.push_back(parameters[i].grad());
  }
  return joint_norm(gradients, order, others);
}

/// All at once, but for those that are not all in memory at once: one after the other.
template <class Call>
void in_groups(const std::vector<at::Tensor>& gradients, const Call& call) {
  if (std::ranges::none_of(gradients, memory::has_owner)) return call(gradients);
  for (const at::Tensor& gradient : gradients) call(std::vector<at::Tensor>{gradient});
}

}  // namespace

double gradient_norm(const std::vector<at::Tensor>& parameters, double order, const OtherParts& others) {
  return norm_of(parameters, order, others);
}

double clip_gradients(const std::vector<at::Tensor>& parameters, const Clipping& clipping, const OtherParts& others) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  const auto* const by_norm = std::get_if<ClipNorm>(&clipping);
  const double norm = norm_of(parameters, by_norm != nullptr ? by_norm->order : 2, others);
  if (gradients.empty()) return norm;
  std::visit(Match{[](const NoClipping&) {},
                   [&](const ClipNorm& clip) {
                     if (norm <= clip.limit || !std::isfinite(norm)) return;
                     in_groups(gradients, [&](const std::vector<at::Tensor>& group) {
                       at::_foreach_mul_(group, clip.limit / (norm + 1e-6));
                     });
                   },
                   [&](const ClipValue& clip) {
                     in_groups(gradients, [&](const std::vector<at::Tensor>& group) {
                       at::_foreach_clamp_min_(group, -clip.limit);
                       at::_foreach_clamp_max_(group, clip.limit);
                     });
                   }},
             clipping);
  return norm;
}

}  // namespace snug::optim
