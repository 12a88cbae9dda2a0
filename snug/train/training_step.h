#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/replay/record_step.h"
#include "snug/replay/session.h"
#include "snug/train/experiment.h"

namespace snug::train {

/// Forward and backward as PyTorch does them. Returns the loss, detached.
at::Tensor run_plain(const replay::Forward& forward);

/// The step that trains an experiment: forward, backward, clipping, the update. Gradients are freed by the update, so
/// that each step makes new ones. One thread at a time.
class TrainingStep {
 public:
  /// The experiment must outlive it.
  explicit TrainingStep(Experiment& experiment) : experiment_(experiment) {}

  /// Records it with its update, of which there has been none yet; a limit holds for the recording. Throws as
  /// replay::record_step_within.
  [[nodiscard]] replay::RecordedStep record(const data::Batch& sample, std::optional<Bytes> limit);
  /// All that a run of the experiment has: this first, and the evaluation pass when it validates.
  [[nodiscard]] std::vector<replay::RecordedStep> record_all(const data::Batch& sample, std::optional<Bytes> limit);

  /// Forward and backward under the session's plan, or without one. Return the loss, detached.
  at::Tensor backward(Session& session, const data::Batch& batch);
  at::Tensor backward_plain(const data::Batch& batch);

  struct Gradients {
    double loss = 0;
    double norm = 0;  ///< before clipping
  };
  /// The step as far as its update: the gradients are clipped. `step` names it in messages. Throws Error when the loss
  /// or a gradient is not finite, naming the operator that made it so when train.detect_anomaly is on; what it throws
  /// leaves weights and random generator as they were before.
  Gradients make_gradients(Session& session, const data::Batch& batch, std::int64_t step);

  /// Clips the gradients. Returns their norm before.
  double clip();
  /// Updates the weights as step number `step` does, and frees the gradients.
  void update(std::int64_t step);
  void forget_gradients();

  /// What an update takes in time and memory, before the first one; see optim::Optimizer::rehearse.
  [[nodiscard]] replay::Rehearsal rehearsal();

 private:
  Experiment& experiment_;
};

}  // namespace snug::train
