#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/zeros_like.h>

#include "snug/memory/tag.h"
#include "snug/optim/optimizer.h"

namespace snug::optim {
namespace {

/// Stochastic gradient descent with momentum (Sutskever et al. 2013), which is a sum of gradients that decays; without
/// momentum nothing is kept. Half of AdamW's memory at most.
class Sgd final : public Optimizer {
 public:
  Sgd(const std::vector<at::Tensor>& parameters, double momentum, double weight_decay)
      : Optimizer(parameters, decayed_by_dimensions(parameters, weight_decay)), momentum_(momentum) {
    if (momentum == 0) return;
    const memory::TagScope tag(memory::Tag::Optimizer);
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < parameters.size(); ++i) sums_.push_back(at::zeros_like(updated(i)));
  }

 private:
  void update(Update& u) override {
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

  [[nodiscard]] std::vector<std::pair<std::string_view, at::Tensor>> own_state(std::size_t parameter) const override {
    if (sums_.empty()) return {};
    return {{"momentum_buffer", sums_[parameter]}};
  }

  double momentum_;
  std::vector<at::Tensor> sums_;  // none without momentum
};

}  // namespace

const OptimizerKind& sgd_kind() {
  static const OptimizerKind kind{
      .name = "sgd",
      .keys = {kWeightDecay, {"momentum", 0.9, "decay of the sum of gradients; 0: only the last counts", kFraction}},
      .make = [](std::vector<at::Tensor> parameters, const OwnValues& values) -> std::unique_ptr<Optimizer> {
        return std::make_unique<Sgd>(parameters, values.number("momentum"), values.number("weight_decay"));
      }};
  return kind;
}

}  // namespace snug::optim
