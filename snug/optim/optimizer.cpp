#include "snug/optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "snug/memory/tag.h"

namespace snug::optim {
namespace {

/// Of a type in which an update of the size of a learning rate rounds to nothing.
bool is_half(const at::Tensor& t) { return t.scalar_type() == at::kBFloat16 || t.scalar_type() == at::kHalf; }

}  // namespace

std::vector<ParameterGroup> decayed_by_dimensions(const std::vector<at::Tensor>& parameters, double weight_decay) {
  std::vector<ParameterGroup> groups{{weight_decay, {}}, {0.0, {}}};
  for (std::size_t i = 0; i < parameters.size(); ++i) groups[parameters[i].dim() >= 2 ? 0 : 1].members.push_back(i);
  return groups;
}

Optimizer::Optimizer(std::vector<at::Tensor> parameters, std::vector<ParameterGroup> groups)
    : parameters_(std::move(parameters)), groups_(std::move(groups)) {
  const memory::TagScope tag(memory::Tag::Optimizer);
  const at::NoGradGuard no_grad;
  for (const at::Tensor& p : parameters_) {
    masters_.push_back(is_half(p) ? p.detach().to(at::kFloat) : at::Tensor());
    steps_.push_back(at::zeros({}, p.options().dtype(at::kFloat)));
  }
}

const at::Tensor& Optimizer::updated(std::size_t parameter) const {
  return masters_[parameter].defined() ? masters_[parameter] : parameters_[parameter];
}

void Optimizer::run(Update& u) {
  for (const std::size_t i : u.members) {
    steps_[i].add_(1);
    u.steps.push_back(steps_[i]);
  }
  update(u);
}

void Optimizer::step(double learning_rate) {
  const at::NoGradGuard no_grad;
  for (const ParameterGroup& group : groups_) {
    const auto settings = [&] {
      Update u;
      u.learning_rate = learning_rate;
      u.weight_decay = group.weight_decay;
      return u;
    };
    Update together = settings();
    for (const std::size_t i : group.members) {
      const at::Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined()) continue;
      if (!masters_[i].defined()) {
        together.members.push_back(i);
        together.parameters.push_back(parameters_[i]);
        together.gradients.push_back(gradient);
        continue;
      }
      // One at a time, so that one gradient at most is there in fp32.
      const memory::TagScope tag(memory::Tag::Workspace);
      Update alone = settings();
      alone.members = {i};
      alone.parameters = {masters_[i]};
      alone.gradients = {gradient.to(at::kFloat)};
      run(alone);
      parameters_[i].copy_(masters_[i]);
    }
    if (together.members.empty()) continue;
    run(together);
    // Fused kernels write parameters without telling autograd's version counters of it in every build.
    for (at::Tensor& p : together.parameters) p.unsafeGetTensorImpl()->bump_version();
  }
}

void Optimizer::rehearse() {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& count : steps_) {
    if (count.item<float>() != 0) throw std::logic_error("Optimizer::rehearse: called after the first step");
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
  // A learning rate of zero neither moves nor decays a weight, and a master copy that has not moved rounds to the
  // weight it was made of.
  step(0.0);
}

void Optimizer::zero_grad() {
  for (at::Tensor& p : parameters_) p.mutable_grad() = at::Tensor();
}

std::vector<at::Tensor> Optimizer::state() const {
  std::vector<at::Tensor> state;
  for (auto& [name, tensor] : named_state(std::vector<std::string>(parameters_.size()))) state.push_back(tensor);
  return state;
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::named_state(
    const std::vector<std::string>& parameter_names) const {
  if (parameter_names.size() != parameters_.size()) {
    throw std::logic_error("Optimizer::named_state: a name for every parameter");
  }
  std::vector<std::pair<std::string, at::Tensor>> named;
  const auto add = [&](std::string_view what, std::size_t i, const at::Tensor& tensor) {
    named.emplace_back(std::string(what) + "." + parameter_names[i], tensor);
  };
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (const auto& [what, tensor] : own_state(i)) add(what, i, tensor);
    add("step", i, steps_[i]);
    if (masters_[i].defined()) add("master", i, masters_[i]);
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
