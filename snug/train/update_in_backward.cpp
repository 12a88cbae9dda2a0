#include "snug/train/update_in_backward.h"

#include <fmt/format.h>

#include <cmath>

#include "snug/base/errors.h"

namespace snug::train {

UpdateInBackward::UpdateInBackward(Experiment& experiment) : experiment_(experiment) {
  const std::vector<at::Tensor>& parameters = experiment.optimizer().parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) index_.emplace(parameters[i].unsafeGetTensorImpl(), i);
}

void UpdateInBackward::begin(std::int64_t update, std::optional<replay::GradientHooks>& hooks) {
  squares_ = 0;
  hooks.emplace(experiment_.optimizer().parameters(), [this, rate = experiment_.learning_rate(update)](
                                                          const at::Tensor& parameter) { use(parameter, rate); });
}

double UpdateInBackward::norm() const { return std::sqrt(squares_); }

void UpdateInBackward::use(const at::Tensor& parameter, double learning_rate) {
  const double norm = optim::clip_gradients({parameter}, experiment_.clipping());
  if (!std::isfinite(norm)) {
    throw Error(fmt::format(
        "train: the gradient of a weight of shape {} is not finite; as optimizer.in_backward = true, others "
        "have been updated with theirs: resume from the last state",
        c10::str(parameter.sizes())));
  }
  squares_ += norm * norm;
  experiment_.optimizer().step(index_.at(parameter.unsafeGetTensorImpl()), learning_rate);
  at::Tensor(parameter).mutable_grad() = at::Tensor();
}

void UpdateInBackward::rehearse(const at::Tensor& parameter) {
  const auto known = index_.find(parameter.unsafeGetTensorImpl());
  if (known == index_.end()) return;
  (void)optim::clip_gradients({parameter}, experiment_.clipping());
  experiment_.optimizer().rehearse(known->second);
  at::Tensor(parameter).mutable_grad() = at::Tensor();
}

}  // namespace snug::train
