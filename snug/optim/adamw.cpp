#include "snug/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <stdexcept>
#include <utility>

#include "snug/memory/tag.h"

namespace snug::optim {

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : options_(options), parameters_(std::move(parameters)), groups_{{options.weight_decay, {}}, {0.0, {}}} {
  const memory::TagScope tag(memory::Tag::Optimizer);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& p = parameters_[i];
    first_moments_.push_back(at::zeros_like(p));
    second_moments_.push_back(at::zeros_like(p));
    steps_.push_back(at::zeros({}, p.options().dtype(at::kFloat)));
    groups_[p.dim() >= 2 ? 0 : 1].members.push_back(i);
  }
}

void AdamW::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    std::vector<at::Tensor> parameters, gradients, first, second, steps;
    for (std::size_t i : group.members) {
      if (!parameters_[i].grad().defined()) continue;
      parameters.push_back(parameters_[i]);
      gradients.push_back(parameters_[i].grad());
      first.push_back(first_moments_[i]);
      second.push_back(second_moments_[i]);
      steps.push_back(steps_[i]);
      steps_[i].add_(1);
    }
    if (parameters.empty()) continue;
    at::_fused_adamw_(parameters, gradients, first, second, {}, steps, learning_rate, options_.beta1, options_.beta2,
                      group.weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
    // The kernel writes parameters without telling autograd's version counters of it in every build.
    for (at::Tensor& p : parameters) p.unsafeGetTensorImpl()->bump_version();
  }
}

void AdamW::rehearse() {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& count : steps_) {
    if (count.item<float>() != 0) throw std::logic_error("AdamW::rehearse: called after the first step");
  }
  for (const at::Tensor& p : parameters_) {
    if (p.grad().defined()) p.grad().zero_();
  }
  // Counted up before the kernel runs, which may find no memory.
  struct Uncounted {
    std::vector<at::Tensor>& counts;
    ~Uncounted() {
      for (at::Tensor& count : counts) count.zero_();
    }
  } const uncounted{steps_};
  // Moments of zero stay zero, and a learning rate of zero neither moves nor decays a weight.
  step(0.0);
}

void AdamW::zero_grad() {
  for (at::Tensor& p : parameters_) p.mutable_grad() = at::Tensor();
}

std::vector<at::Tensor> AdamW::state() const {
  std::vector<at::Tensor> state = first_moments_;
  state.insert(state.end(), second_moments_.begin(), second_moments_.end());
  state.insert(state.end(), steps_.begin(), steps_.end());
  return state;
}

std::vector<std::pair<std::string, at::Tensor>> AdamW::named_state(
    const std::vector<std::string>& parameter_names) const {
  if (parameter_names.size() != parameters_.size()) {
    throw std::logic_error("AdamW::named_state: a name for every parameter");
  }
  std::vector<std::pair<std::string, at::Tensor>> named;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    named.emplace_back("exp_avg." + parameter_names[i], first_moments_[i]);
    named.emplace_back("exp_avg_sq." + parameter_names[i], second_moments_[i]);
    named.emplace_back("step." + parameter_names[i], steps_[i]);
  }
  return named;
}

double clip_gradient_norm(const std::vector<at::Tensor>& parameters, double limit) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  if (gradients.empty()) return 0;
  const double norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients))).item<double>();
  if (limit > 0 && norm > limit) at::_foreach_mul_(gradients, limit / (norm + 1e-6));
  return norm;
}

}  // namespace snug::optim
