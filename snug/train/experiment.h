#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "snug/optim/optimizer.h"
#include "snug/optim/schedule.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/planner.h"
#include "snug/replay/rehearsal.h"
#include "snug/replay/session.h"
#include "snug/train/config.h"
#include "snug/train/language_task.h"

namespace snug::train {

/// What a configuration describes, made: model, data, optimizer. The same configuration makes the same experiment, bit
/// for bit.
class Experiment {
 public:
  /// Throws UsageError for a configuration that cannot be: see validate(), TextCorpus::open and TextDataset.
  explicit Experiment(const Config& config);

  /// The loss of one batch, in the configured precision: a scalar on the autograd graph.
  at::Tensor loss(const data::Batch& batch);

  [[nodiscard]] data::Batch train_batch(std::int64_t step) const;

  /// Clips the gradients, updates the weights and frees the gradients. Returns the norm before clipping.
  double update(std::int64_t step);
  /// Its two halves.
  double clip_gradients();
  void apply_gradients(std::int64_t step);

  /// What update() takes in time and memory, without its effect but on the gradients. Runs only before the first
  /// update, and while this lives.
  [[nodiscard]] replay::Rehearsal rehearsal();

  /// Mean loss over the validation split, in evaluation mode; nullopt when there is none: rows of documents have none.
  /// `between` is called after each of its batches; may be empty.
  std::optional<double> validation_loss(const std::function<void()>& between = {});

  [[nodiscard]] const Config& config() const noexcept { return config_; }
  [[nodiscard]] torch::nn::Module& model() const noexcept { return task_.module(); }
  [[nodiscard]] const LanguageModel& language_model() const noexcept { return task_.model(); }
  [[nodiscard]] const data::Tokenizer& tokenizer() const noexcept { return task_.tokenizer(); }
  /// Of the text and of the files of the pretrained model, to tell when they were replaced: sizes and samples.
  [[nodiscard]] const std::string& fingerprint() const noexcept { return task_.fingerprint(); }
  /// Tokens that end a text.
  [[nodiscard]] const std::vector<data::TokenId>& ends() const noexcept { return task_.ends(); }
  [[nodiscard]] optim::Optimizer& optimizer() noexcept { return *optimizer_; }
  [[nodiscard]] std::int64_t tokens_per_step() const { return task_.units_per_step(); }

 private:
  Config config_;
  LanguageTask task_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::Schedule schedule_;
};

/// Runs a tiny step of the same kind, so that what LibTorch loads and sets up on first use is there: kernels, thread
/// pools, scratch. Resident memory after it is the process's start-up.
void warm_up(const Config& config);

/// The budget that `text` asks for (see parse_budget); when that is none, the one that a plan file was made for.
BudgetRequest requested_budget(const std::string& text, const std::optional<plan::PlanFile>& file);

/// The budget that a configuration asks for, when keeping everything takes `unplanned_peak` bytes.
std::optional<plan::Budget> budget_for(const BudgetRequest& request, Bytes unplanned_peak);

/// One step of an experiment, recorded, and all that it takes to plan it.
struct PlannedExperiment {
  replay::RecordedStep step;
  plan::Planner planner;
  std::optional<plan::Budget> budget;  ///< that the configuration asks for
  double planning_seconds = 0;         ///< the search, without recording
};

/// Records one step and prepares plans. A budget in bytes caps the recording too; one in percent is of the unplanned
/// peak, which takes an uncapped recording to know; without one nothing is capped. `file`: a plan to use in place of
/// the configured strategy; its budget holds when the configuration has none. Throws UsageError when it is for another
/// step, DoesNotFit when the step does not even run under the budget with eviction.
PlannedExperiment plan_experiment(Experiment& experiment, const std::optional<plan::PlanFile>& file = {});

/// The session of plan_experiment(). Throws DoesNotFit.
Session plan_session(Experiment& experiment, const std::optional<plan::PlanFile>& file = {});

}  // namespace snug::train
