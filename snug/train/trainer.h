#pragma once

#include <functional>
#include <optional>

#include "snug/plan/plan_file.h"
#include "snug/report/progress.h"
#include "snug/train/config.h"
#include "snug/train/team.h"
#include "snug/train/train_result.h"

namespace snug::train {

class Experiment;

/// Where a run begins.
enum class Start : unsigned char {
  Anew,
  Resume,  ///< at the newest training state in output.folder, or else at the first step
};

struct TrainOptions {
  std::optional<plan::PlanFile> plan;  ///< to follow; see plan_experiment
  Start start = Start::Anew;
  Team team = {};  ///< that trains together; its first process alone writes and tells
  /// Called with the experiment before the first step is recorded: under the budget where that is in bytes, as one in
  /// percent is not known yet. What it takes is not in the result. May be empty.
  std::function<void(Experiment&)> before;
  /// Called after the last step, also of a run that was stopped, but not where no step was done; the state of that step
  /// is saved, and the budget still holds. What it takes is not in the result. May be empty.
  std::function<void(Experiment&, const TrainResult&)> after;
};

/// Trains as the configuration says and writes metrics and training state to its output folder, a state of the last
/// step at the least; what an earlier run left there is put aside when a run begins at the first step. Stops cleanly
/// when interrupted() says so, and saves its state then, before it validates. Whatever is thrown after the first step,
/// by `after` too, a state of the steps done is saved first, unless it was an update that failed. Throws Error naming
/// the step when the loss is not finite, and the first operator that made it when train.detect_anomaly is on, and when
/// the last state could not be saved; DoesNotFit, OutOfBudget and UsageError as the parts do, and UsageError when
/// another run writes to the folder, when more steps are done there than are to be done, and when the run would read
/// what it writes (see check_output_folder).
TrainResult train(const Config& config, report::Progress& progress, const TrainOptions& options = {});

}  // namespace snug::train
