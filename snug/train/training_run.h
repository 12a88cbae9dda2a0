#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "snug/data/prefetcher.h"
#include "snug/replay/session.h"
#include "snug/report/progress.h"
#include "snug/train/experiment.h"
#include "snug/train/overflows.h"
#include "snug/train/run_state.h"
#include "snug/train/save_clock.h"
#include "snug/train/sink.h"
#include "snug/train/trainer.h"
#include "snug/train/training_step.h"

namespace snug::train {

/// The steps of a run, and what is told and saved of them. One thread.
class TrainingRun {
 public:
  /// Into `result`, which says with how many steps the run goes on. All must outlive this.
  TrainingRun(Experiment& experiment, Session& session, RunState& state, report::Progress& progress,
              TrainResult& result);

  /// Before the first step: opens the files of output.folder, and restores the state that was found.
  void begin();
  /// All steps, validation and saving, and what comes behind them. Whatever fails, the steps that were done are not
  /// lost.
  void run(const TrainOptions& options);

 private:
  [[nodiscard]] bool saves() const { return !config_.output.folder.empty() && experiment_.team().is_first(); }
  [[nodiscard]] bool stops() const;
  [[nodiscard]] bool is_due(std::int64_t every) const { return every > 0 && done_ % every == 0; }
  [[nodiscard]] bool is_last() const { return done_ == config_.train.steps || stops(); }

  void run_steps();
  /// All is saved that is to be, and told. Throws the first of what failed.
  void end();
  /// After a failure, which is told by others: here only what goes wrong beside it.
  void leave(RunState::Others others);

  StepRecord run_step(data::Prefetcher<data::Batch>& batches);
  /// A record of the step that was made last, without its seconds.
  StepRecord record_of(const TrainingStep::Gradients& made, std::int64_t update, double scale);
  void verify_replays(std::int64_t step);
  /// The state of these steps has the loss, where there is one.
  std::optional<double> validate();
  /// Unless there is a state of these steps, or none is asked for.
  void save(RunState::Others others = RunState::Others::Wait);
  void finish_result();

  Experiment& experiment_;
  const Config& config_;
  Session& session_;
  RunState& state_;
  report::Progress& progress_;
  TrainResult& result_;
  TrainingStep step_;
  SaveClock save_clock_;
  bool scales_;  // losses
  std::vector<std::unique_ptr<Sink>> sinks_;
  Overflows overflows_;
  std::int64_t done_;        // steps
  std::int64_t saved_at_;    // of them, when the newest state was saved
  bool whole_ = true;        // the weights are those after so many steps
  bool ended_ = false;       // no step follows
  bool said_so_ = false;     // that a step is not the planned one
  bool team_stops_ = false;  // behind the last step: one of its processes was asked to
  bool saves_now_ = false;   // the same
  double started_ = 0;
};

}  // namespace snug::train
