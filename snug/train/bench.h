#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/budget_request.h"
#include "snug/replay/record_step.h"
#include "snug/replay/session.h"
#include "snug/report/progress.h"
#include "snug/train/config.h"

namespace snug::train {

struct BenchOptions {
  std::vector<plan::BudgetRequest> budgets;
  std::vector<std::string> strategies{"optimal"};
  std::int64_t rounds = 3;  ///< in each, every row has its turn, beside one of the unplanned step
  std::int64_t steps = 2;   ///< timed in each turn, after one that is not
};

/// The step that is measured.
struct BenchStep {
  std::function<std::vector<replay::RecordedStep>()> record;  ///< its kinds, as a Session takes them
  std::function<void()> plain;                                ///< forward and backward
  std::function<std::int64_t(Session& session)> planned;      ///< the same under plans; returns the operators replayed
  std::function<void()> forget_gradients;
  /// What its update takes, so that plans know of it; may be empty. Runs after every step, and in no time that counts.
  replay::Rehearsal update = {};
  std::int64_t micro_batches = 1;  ///< of a step, which runs them all
  c10::Device device;              ///< whose memory plans and budgets are of
};

/// That of a function, on a device.
BenchStep bench_step(const replay::Forward& forward, std::function<void()> forget_gradients, c10::Device device);

/// One strategy under one budget. Seconds are of forward and backward, peaks of the update too.
struct BenchRow {
  std::string strategy;
  std::optional<Bytes> budget;  ///< none: the strategy's own plan, without a cap
  bool fits = true;             ///< else nothing below was measured, and `predicted_peak` is the strategy's smallest
  std::int64_t turns = 0;       ///< that it had; without one, as in a run that was stopped, nothing was measured
  Bytes predicted_peak = 0;
  Bytes measured_peak = 0;  ///< highest of all measured steps, blocks of the allocator
  Bytes mapped_peak = 0;    ///< the same of mapped pages: what the cap is on
  double predicted_seconds = 0;
  double seconds_median = 0;
  double unplanned_seconds_median = 0;  ///< in the turns beside this row's
  double ratio_median = 0;              ///< of seconds to the unplanned step's, turn by turn
  std::int64_t replayed_ops = 0;
};

struct BenchResult {
  bool complete = true;  ///< else it was stopped, and rows may be missing or have had fewer turns
  Bytes unplanned_peak = 0;
  Bytes static_bytes = 0;                 ///< before the step: weights, optimizer state, the batch
  double unplanned_seconds_recorded = 0;  ///< what predictions start from
  std::vector<BenchRow> rows;
};

/// {"measurements": [one object for each row], "complete": ...}; what was not measured is null.
nlohmann::ordered_json to_json(const BenchResult& result);

/// The rows as a table for a terminal, see report::render_table.
std::string render(const BenchResult& result, const std::string& title, std::optional<int> most_columns = {});

/// Records one step, plans it by every strategy for every budget, and runs all plans and the unplanned step in turns in
/// this process, so that ratios stand on a noisy machine. "optimal" and "eviction" give a row for each budget; any
/// other strategy has one plan, and gives one row. Throws UsageError for strategies that cannot be read, before it
/// records. When interrupted() says so it stops, and returns what it has.
BenchResult bench(const BenchStep& step, const BenchOptions& options, report::Progress& progress);
/// Of the step that a configuration describes, with its update.
BenchResult bench(const Config& config, const BenchOptions& options, report::Progress& progress);

}  // namespace snug::train
