#include "snug/optim/sgd.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>

#include "snug/memory/tag.h"

namespace snug::optim {

Sgd::Sgd(const Parameters& parameters, SgdOptions options)
    : Optimizer(parameters, options.weight_decay), momentum_(options.momentum) {
  if (momentum_ == 0) return;
  const memory::TagScope tag(memory::Tag::Optimizer);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) sums_.push_back(zeros_for(i));
}

void Sgd::update(Update& u) {
  if (u.weight_decay > 0) at::_foreach_mul_(u.parameters, 1 - u.learning_rate * u.weight_decay);
  if (sums_.empty()) {
    at::_foreach_add_(u.parameters, u.gradients, -u.learning_rate);
    return;
  }
  std::vector<at::Tensor> sums;
  for (const std::size_t i : u.members) sums.push_back(sums_[i]);
  at::_foreach_mul_(sums, momentum_);
  at::_foreach_add_(sums, u.gradients);
  at::_foreach_add_(u.parameters, sums, -u.learning_rate);
}

std::vector<Optimizer::OwnState> Sgd::own_state(std::size_t parameter) const {
  if (sums_.empty()) return {};
  return {{"momentum_buffer", sums_[parameter]}};
}

const OptimizerKind& sgd_kind() {
  static const OptimizerKind kind{
      .name = "sgd",
      .keys = {kWeightDecay, {"momentum", 0.9, "decay of the sum of gradients; 0: only the last counts", kFraction}},
      .make = [](const Parameters& parameters, const OwnValues& values) -> std::unique_ptr<Optimizer> {
        return std::make_unique<Sgd>(parameters, SgdOptions{.momentum = values.number("momentum"),
                                                            .weight_decay = values.number("weight_decay")});
      }};
  return kind;
}

}  // namespace snug::optim
