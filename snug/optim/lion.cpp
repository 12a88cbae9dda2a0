#include "snug/optim/lion.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/lerp.h>

#include "snug/memory/tag.h"

namespace snug::optim {

Lion::Lion(const Parameters& parameters, LionOptions options)
    : Optimizer(parameters, options.weight_decay), options_(options) {
  const memory::TagScope tag(memory::Tag::Optimizer);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) moments_.push_back(zeros_for(i));
}

void Lion::update(Update& u) {
  const memory::TagScope tag(memory::Tag::Workspace);
  for (std::size_t k = 0; k < u.members.size(); ++k) {
    at::Tensor& parameter = u.parameters[k];
    at::Tensor& moment = moments_[u.members[k]];
    parameter.mul_(1 - u.learning_rate * u.weight_decay);
    parameter.add_(at::lerp(moment, u.gradients[k], 1 - options_.beta1).sign_(), -u.learning_rate);
    moment.lerp_(u.gradients[k], 1 - options_.beta2);
  }
}

std::vector<Optimizer::OwnState> Lion::own_state(std::size_t parameter) const {
  return {{"exp_avg", moments_[parameter]}};
}

const OptimizerKind& lion_kind() {
  static const OptimizerKind kind{
      .name = "lion",
      .keys = {kWeightDecay,
               {"lion_beta1", 0.9, "weight of the momentum in an update's direction", kFraction, {}, Resumed::Free},
               {"lion_beta2", 0.99, "decay of the momentum", kFraction, {}, Resumed::Free}},
      .make = [](const Parameters& parameters, const OwnValues& values) -> std::unique_ptr<Optimizer> {
        return std::make_unique<Lion>(parameters, LionOptions{.beta1 = values.number("lion_beta1"),
                                                              .beta2 = values.number("lion_beta2"),
                                                              .weight_decay = values.number("weight_decay")});
      }};
  return kind;
}

}  // namespace snug::optim
