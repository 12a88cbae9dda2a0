#include "snug/optim/adafactor.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "snug/memory/tag.h"

namespace snug::optim {
namespace {

/// What torch.finfo(dtype).eps is, of the types that are updated.
double epsilon_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

double root_mean_square(const at::Tensor& t) {
  return at::linalg_vector_norm(t).item<double>() / std::sqrt(static_cast<double>(t.numel()));
}

/// The mean of the squares along a dimension, which stays, with a size of 1.
at::Tensor mean_square(const at::Tensor& t, std::int64_t dimension) {
  return at::linalg_vector_norm(t, 2, {dimension}, /*keepdim=*/true).square_().div_(t.size(dimension));
}

}  // namespace

Adafactor::Adafactor(const Parameters& parameters, AdafactorOptions options)
    : Optimizer(parameters, options.weight_decay), options_(options) {
  refuse_parts(parameters, "adafactor");
  const memory::TagScope tag(memory::Tag::Optimizer);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    const at::Tensor& p = parameters.tensors[i];
    SecondMoment& second = second_moments_.emplace_back();
    if (p.dim() < 2) {
      second.whole = zeros_for(i);
      continue;
    }
    const auto options_of = p.options().dtype(p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    std::vector<std::int64_t> sizes = p.sizes().vec();
    sizes.back() = 1;
    second.rows = at::zeros(sizes, options_of);
    sizes.back() = p.size(-1);
    sizes[sizes.size() - 2] = 1;
    second.columns = at::zeros(sizes, options_of);
  }
}

void Adafactor::update_one(at::Tensor& parameter, const at::Tensor& gradient, SecondMoment& second, double step,
                           const Update& settings) const {
  const double newest = std::pow(step, options_.beta2_decay);
  const double epsilon = epsilon_of(parameter.scalar_type());
  const double rate =
      std::max(options_.floor, root_mean_square(parameter)) * std::min(settings.learning_rate, 1 / std::sqrt(step));
  parameter.mul_(1 - settings.learning_rate * settings.weight_decay);
  at::Tensor update;
  if (second.whole.defined()) {
    second.whole.lerp_(gradient.square(), newest);
    update = second.whole.clone();
  } else {
    second.rows.lerp_(mean_square(gradient, -1), newest);
    second.columns.lerp_(mean_square(gradient, -2), newest);
    update = at::matmul(second.rows, second.columns);
    update.div_(second.rows.mean(-2, /*keepdim=*/true).clamp_min_(epsilon));
  }
  update.clamp_min_(epsilon * epsilon).rsqrt_().mul_(gradient);
  parameter.add_(update, -rate / std::max(1.0, root_mean_square(update) / options_.clip_threshold));
}

void Adafactor::update(Update& u) {
  const memory::TagScope tag(memory::Tag::Workspace);
  for (std::size_t k = 0; k < u.members.size(); ++k) {
    if (u.parameters[k].numel() == 0) continue;
    update_one(u.parameters[k], u.gradients[k], second_moments_[u.members[k]], u.steps[k].item<double>(), u);
  }
}

std::vector<Optimizer::OwnState> Adafactor::own_state(std::size_t parameter) const {
  const SecondMoment& second = second_moments_[parameter];
  if (second.whole.defined()) return {{"variance", second.whole}};
  return {{"row_var", second.rows}, {"col_var", second.columns}};
}

const OptimizerKind& adafactor_kind() {
  static const OptimizerKind kind{
      .name = "adafactor",
      .updates_by = UpdatesBy::Matrices,
      .keys = {kWeightDecay,
               {"beta2_decay",
                -0.8,
                "exponent of the steps: how the second moment forgets",
                {.low = -1, .high = 0, .low_excluded = true, .high_excluded = true},
                {},
                Resumed::Free},
               {"clip_threshold",
                1.0,
                "largest root mean square of an update, before it is scaled",
                kPositive,
                {},
                Resumed::Free},
               {"smallest_scale",
                1e-3,
                "of parameters whose root mean square is smaller, for their updates",
                kPositive,
                {},
                Resumed::Free}},
      .make = [](const Parameters& parameters, const OwnValues& values) -> std::unique_ptr<Optimizer> {
        return std::make_unique<Adafactor>(parameters,
                                           AdafactorOptions{.beta2_decay = values.number("beta2_decay"),
                                                            .clip_threshold = values.number("clip_threshold"),
                                                            .floor = values.number("smallest_scale"),
                                                            .weight_decay = values.number("weight_decay")});
      }};
  return kind;
}

}  // namespace snug::optim
