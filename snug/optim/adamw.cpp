#include "snug/optim/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>

#include "snug/memory/tag.h"

namespace snug::optim {

AdamW::AdamW(const Parameters& parameters, AdamWOptions options)
    : Optimizer(parameters, options.weight_decay), options_(options) {
  const memory::TagScope tag(memory::Tag::Optimizer);
  for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
    first_moments_.push_back(zeros_for(i));
    second_moments_.push_back(zeros_for(i));
  }
}

void AdamW::update(Update& u) {
  std::vector<at::Tensor> first, second;
  for (const std::size_t i : u.members) {
    first.push_back(first_moments_[i]);
    second.push_back(second_moments_[i]);
  }
  at::_fused_adamw_(u.parameters, u.gradients, first, second, {}, u.steps, u.learning_rate, options_.beta1,
                    options_.beta2, u.weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
}

std::vector<Optimizer::OwnState> AdamW::own_state(std::size_t parameter) const {
  return {{"exp_avg", first_moments_[parameter]}, {"exp_avg_sq", second_moments_[parameter]}};
}

const std::vector<OwnKey>& adamw_keys() {
  static const std::vector<OwnKey> keys{
      kWeightDecay,
      {"beta1", 0.9, "decay of the first moment", kFraction, {}, Resumed::Free},
      {"beta2", 0.95, "decay of the second moment", kFraction, {}, Resumed::Free},
      {"epsilon", 1e-8, "added to the root of the second moment", kPositive, {}, Resumed::Free}};
  return keys;
}

AdamWOptions adamw_options(const OwnValues& values) {
  return {.beta1 = values.number("beta1"),
          .beta2 = values.number("beta2"),
          .epsilon = values.number("epsilon"),
          .weight_decay = values.number("weight_decay")};
}

const OptimizerKind& adamw_kind() {
  static const OptimizerKind kind{
      .name = "adamw",
      .keys = adamw_keys(),
      .make = [](const Parameters& parameters, const OwnValues& values) -> std::unique_ptr<Optimizer> {
        return std::make_unique<AdamW>(parameters, adamw_options(values));
      }};
  return kind;
}

}  // namespace snug::optim
