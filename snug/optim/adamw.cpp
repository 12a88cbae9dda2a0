#include "snug/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "snug/memory/tag.h"

namespace snug::optim {
namespace {

/// Of a type in which an update of the size of a learning rate rounds to nothing.
bool is_half(const at::Tensor& t) { return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf; }

}  // namespace

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions options)
    : options_(options), parameters_(std::move(parameters)), groups_{{options.weight_decay, {}}, {0.0, {}}} {
  const memory::TagScope tag(memory::Tag::Optimizer);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& p = parameters_[i];
    masters_.push_back(is_half(p) ? p.detach().to(at::kFloat) : at::Tensor());
    const at::Tensor& updated = masters_[i].defined() ? masters_[i] : p;
    first_moments_.push_back(at::zeros_like(updated));
    second_moments_.push_back(at::zeros_like(updated));
    steps_.push_back(at::zeros({}, p.options().dtype(at::kFloat)));
    groups_[p.dim() >= 2 ? 0 : 1].members.push_back(i);
  }
}

void AdamW::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  for (const Group& group : groups_) {
    Update together;
    for (std::size_t i : group.members) {
      const at::Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      steps_[i].add_(1);
      if (!masters_[i].defined()) {
        together.add(parameters_[i], gradient, first_moments_[i], second_moments_[i], steps_[i]);
        continue;
      }
      // One at a time, so that one gradient at most is there in fp32.
      const memory::TagScope tag(memory::Tag::Workspace);
      Update alone;
      alone.add(masters_[i], gradient.to(at::kFloat), first_moments_[i], second_moments_[i], steps_[i]);
      run(alone, learning_rate, group.weight_decay);
      parameters_[i].copy_(masters_[i]);
    }
    if (together.parameters.empty()) continue;
    run(together, learning_rate, group.weight_decay);
    // The kernel writes parameters without telling autograd's version counters of it in every build.
    for (at::Tensor& p : together.parameters) p.unsafeGetTensorImpl()->bump_version();
  }
}

void AdamW::Update::add(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first_moment,
                        const at::Tensor& second_moment, const at::Tensor& step) {
  parameters.push_back(parameter);
  gradients.push_back(gradient);
  first.push_back(first_moment);
  second.push_back(second_moment);
  steps.push_back(step);
}

void AdamW::run(Update& u, double learning_rate, double weight_decay) const {
  at::_fused_adamw_(u.parameters, u.gradients, u.first, u.second, {}, u.steps, learning_rate, options_.beta1,
                    options_.beta2, weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
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
  // Moments of zero stay zero, a learning rate of zero neither moves nor decays a weight, and a master copy that has
  // not moved rounds to the weight it was made of.
  step(0.0);
}

void AdamW::zero_grad() {
  for (at::Tensor& p : parameters_) p.mutable_grad() = at::Tensor();
}

std::vector<at::Tensor> AdamW::state() const {
  std::vector<at::Tensor> state = first_moments_;
  state.insert(state.end(), second_moments_.begin(), second_moments_.end());
  state.insert(state.end(), steps_.begin(), steps_.end());
  for (const at::Tensor& master : masters_) {
    if (master.defined()) state.push_back(master);
  }
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
    if (masters_[i].defined()) named.emplace_back("master." + parameter_names[i], masters_[i]);
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
  // A norm in bf16 is rounded before it is added up, and those of adapters beside it are in fp32.
  const auto dtype = std::ranges::any_of(gradients, is_half) ? std::optional(at::kFloat) : std::nullopt;
  const double norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2, dtype))).item<double>();
  if (limit > 0 && norm > limit) at::_foreach_mul_(gradients, limit / (norm + 1e-6));
  return norm;
}

}  // namespace snug::optim
