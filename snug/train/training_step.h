#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/replay/record_step.h"
#include "snug/replay/session.h"
#include "snug/train/experiment.h"
#include "snug/train/micro_batches.h"
#include "snug/train/update_in_backward.h"

namespace snug::train {

/// Forward and backward as PyTorch does them. Returns the loss, detached.
at::Tensor run_plain(const replay::Forward& forward);

/// The step that trains an experiment: forward and backward of each micro-batch, clipping, the update. In fp16 the loss
/// is scaled, and a step whose gradients overflow has no update. Gradients are freed by the update, so that each step
/// makes new ones. One thread at a time.
class TrainingStep {
 public:
  /// The experiment must outlive it.
  explicit TrainingStep(Experiment& experiment);

  /// Records it with its update, of which there has been none yet; a limit holds for the recording. Of several
  /// micro-batches: a later one, which is the one with the update, and the first. Throws as
  /// replay::record_step_within, as micro_batches(), and Stopped when interrupted() says so.
  [[nodiscard]] std::vector<replay::RecordedStep> record(const data::Batch& sample, std::optional<Bytes> limit);
  /// All that a run of the experiment has: these first, and the evaluation pass when it validates.
  [[nodiscard]] std::vector<replay::RecordedStep> record_all(const data::Batch& sample, std::optional<Bytes> limit);

  /// Forward and backward of all micro-batches, under the session's plans or without. With optimizer.in_backward the
  /// last of them makes update number `update` (see Experiment::learning_rate), and no gradient is left. Return the
  /// loss, detached; of a model in stages zero.
  at::Tensor backward(Session& session, const data::Batch& batch, std::int64_t update);
  at::Tensor backward_plain(const data::Batch& batch, std::int64_t update);

  /// What the session did in the latest backward(), of all micro-batches.
  struct Report {
    std::int64_t replayed_ops = 0;
    std::int64_t evictions = 0;
    Bytes lossy_bytes = 0;
    std::string divergence;  ///< of the first that did not follow a plan; empty: all did
  };
  [[nodiscard]] const Report& last() const noexcept { return last_; }

  struct Gradients {
    double loss = 0;
    double norm = 0;                       ///< before clipping
    bool overflowed = false;               ///< there will be no update; the norm is none
    bool stops = false;                    ///< a process of the team has been asked to stop: all do behind this step
    bool saves = false;                    ///< a process has been asked to save the state: all do behind this step
    std::vector<std::string> random = {};  ///< states of all their generators, by Team::drawer()
  };
  /// The step as far as its update: the gradients are clipped. `step` names it in messages; `update`: as backward().
  /// Throws Error when the loss or a gradient is not finite and no scaled loss accounts for it, naming the operator
  /// that made it so when train.detect_anomaly is on; what it throws leaves weights and random generator as they were
  /// before, but for weights that optimizer.in_backward has updated (see whole()).
  Gradients make_gradients(Session& session, const data::Batch& batch, std::int64_t step, std::int64_t update);
  /// Whether the weights are those of a whole number of updates.
  [[nodiscard]] bool whole() const noexcept { return whole_; }

  /// Divides the gradients by the loss scale, where there is one, and clips them unless they overflowed. Returns their
  /// norm before.
  double clip();
  /// Whether clip() found a gradient that is not finite in a step whose loss is scaled.
  [[nodiscard]] bool overflowed() const;
  /// Updates the weights, unless backward() has, as update number `update` (see Experiment::learning_rate), and frees
  /// the gradients. Where they overflowed the weights stay, and the loss scale falls.
  void update(std::int64_t update);
  void forget_gradients();

  /// What an update takes in time and memory, before the first one; see optim::Optimizer::rehearse.
  [[nodiscard]] replay::Rehearsal rehearsal();

 private:
  std::vector<replay::RecordedStep> record_kinds(const data::Batch& sample, std::optional<Bytes> limit);
  /// Of a step's micro-batches, as they were weighted, and in fp16 scaled: as processes and micro-batches add them up.
  struct Losses {
    at::Tensor sum;
    std::vector<double> each{};  // to be told other processes
  };
  Losses scaled_backward(Session& session, const data::Batch& batch, std::int64_t update);
  [[nodiscard]] at::Tensor unscaled(const at::Tensor& loss) const;
  /// What all processes have made of a step, of which this one has those losses.
  Gradients gathered(const Losses& losses);
  /// While it lives the gradients of a micro-batch that is not the last stay with this process, if they are to.
  [[nodiscard]] std::unique_ptr<TeamGradients::Accumulating> not_the_last() const;
  /// The loss times its share and the loss scale, where they are not one.
  at::Tensor weighted_loss(const MicroBatch& micro);
  [[nodiscard]] at::Tensor weighted(const at::Tensor& loss, const MicroBatch& micro) const;
  /// `run` runs each micro-batch.
  template <class Run>
  Losses losses_of(const data::Batch& batch, std::int64_t update, const Run& run);
  /// A step of a model in stages, which goes backward by itself, and leaves this process's losses there.
  replay::Forward through_stages(const std::vector<MicroBatch>& micros, std::vector<at::Tensor>& losses);
  /// The same of a model in stages: `run` runs all micro-batches at once.
  template <class Run>
  Losses losses_in_stages(const std::vector<MicroBatch>& micros, const Run& run);

  Experiment& experiment_;
  std::optional<UpdateInBackward> in_backward_;
  TeamGradients* together_;  // with the other processes; nullptr: there are none
  bool whole_ = true;
  Report last_;
};

}  // namespace snug::train
