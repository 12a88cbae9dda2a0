#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <optional>
#include <vector>

#include "snug/memory/stats.h"
#include "snug/plan/plan_file.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/report/progress.h"
#include "snug/train/config.h"

namespace snug::train {

class Experiment;

/// What a training run did. Seconds are of whole steps, optimizer included.
struct TrainResult {
  std::int64_t steps = 0;
  std::int64_t parameters = 0;  ///< packed weights not counted
  std::int64_t trained_parameters = 0;
  double tokens_per_second = 0;
  double step_seconds_median = 0;
  double loss_first = 0;
  double loss_last = 0;
  std::optional<double> validation_loss;
  plan::MemoryPlan plan;
  memory::Stats memory;      ///< since the budget holds
  Bytes resident_start = 0;  ///< of the process after warm_up(), before the experiment is made
  Bytes resident_peak = 0;
  std::int64_t replayed_ops = 0;  ///< of the last step
  std::int64_t evictions = 0;     ///< of all steps
  bool interrupted = false;
  std::int64_t resumed_from = 0;  ///< steps that an earlier run had done
  std::int64_t states_saved = 0;
};

/// What every result says of its plan, and of the memory that following it took.
nlohmann::ordered_json plan_figures(const plan::MemoryPlan& plan, const memory::Stats& memory);

nlohmann::ordered_json to_json(const TrainResult& result);

/// Where a run begins.
enum class Start : unsigned char {
  Anew,
  Resume,  ///< at the newest training state in output.folder, or else at the first step
};

struct TrainOptions {
  std::optional<plan::PlanFile> plan;  ///< to follow; see plan_experiment
  Start start = Start::Anew;
  /// Called with the experiment before the first step is recorded, and before the budget holds; may be empty.
  std::function<void(Experiment&)> before;
  /// Called after the last step, also of a run that was stopped, but not where no step was done; the budget still
  /// holds. What it takes is not in the result. May be empty.
  std::function<void(Experiment&, const TrainResult&)> after;
};

/// Trains as the configuration says and writes metrics and training state to its output folder. Stops cleanly when
/// interrupted() says so, and saves its state then, before it validates. Throws Error naming the step when the loss is
/// not finite, and the first operator that made it when train.detect_anomaly is on, and when the last state could not
/// be saved; DoesNotFit, OutOfBudget and UsageError as the parts do, and UsageError when another run writes to the
/// folder and when more steps are done there than are to be done.
TrainResult train(const Config& config, report::Progress& progress, const TrainOptions& options = {});

/// The middle of `values`, 0 when there are none.
double median(std::vector<double> values);

}  // namespace snug::train
