#pragma once

#include <optional>
#include <unordered_map>

#include "snug/replay/gradient_hooks.h"
#include "snug/train/experiment.h"

namespace snug::train {

/// Updates each weight of an experiment as soon as its gradient is there, in the backward pass, and frees the gradient:
/// bit for bit what the optimizer does behind it, as long as no gradient depends on another (see validate()).
class UpdateInBackward {
 public:
  /// The experiment must outlive it.
  explicit UpdateInBackward(Experiment& experiment);

  /// While `hooks` live, which this makes, gradients that arrive are used by update number `update`. One that is not
  /// finite ends the backward pass with an Error before it is used: those that were there before it have been.
  void begin(std::int64_t update, std::optional<replay::GradientHooks>& hooks);
  /// The 2-norm of those that have arrived since.
  [[nodiscard]] double norm() const;

  /// What this takes in memory and time for one parameter, before the first update. The gradient goes.
  void rehearse(const at::Tensor& parameter);

 private:
  void use(const at::Tensor& parameter, double learning_rate);

  Experiment& experiment_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_;
  double squares_ = 0;
};

}  // namespace snug::train
