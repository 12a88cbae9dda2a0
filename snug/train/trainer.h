#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <optional>
#include <vector>

#include "snug/memory/stats.h"
#include "snug/plan/memory_plan.h"
#include "snug/plan/plan_file.h"
#include "snug/report/progress.h"
#include "snug/train/config.h"

namespace snug::train {

/// What a training run did. Seconds are of whole steps, optimizer included.
struct TrainResult {
  std::int64_t steps = 0;
  std::int64_t parameters = 0;
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
};

/// What every result says of its plan, and of the memory that following it took.
nlohmann::ordered_json plan_figures(const plan::MemoryPlan& plan, const memory::Stats& memory);

nlohmann::ordered_json to_json(const TrainResult& result);

/// Trains as the configuration says and writes metrics to its output folder. Stops cleanly when interrupted() says so.
/// Throws Error naming the step when the loss is not finite, and the first operator that made it when
/// train.detect_anomaly is on; DoesNotFit, OutOfBudget and UsageError as the parts do. `file` as in plan_experiment.
TrainResult train(const Config& config, report::Progress& progress, const std::optional<plan::PlanFile>& file = {});

/// The middle of `values`, 0 when there are none.
double median(std::vector<double> values);

}  // namespace snug::train
