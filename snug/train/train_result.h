#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/stats.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/replay/step_arena.h"

namespace snug::train {

/// The highest of all kinds of steps, with their plans and without. Measured ones are at most `predicted + copies`.
struct StepPeaks {
  Bytes predicted = 0, unplanned = 0;
  Bytes copies = 0;  ///< beside them while saved state is written in the background: the most of any save
};

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
  plan::MemoryPlan plan;                          ///< of the step that ran last
  StepPeaks peaks;                                ///< as predicted
  memory::Stats memory;                           ///< since the steps began
  std::optional<replay::StepArena::Stats> arena;  ///< of the step that ran last, with memory.arena
  Bytes recording_peak = 0;  ///< before, while a step was recorded: within a budget in bytes, without one else
  struct Resident {
    Bytes start = 0;  ///< after warm_up(), before the experiment is made
    Bytes peak = 0;
  } resident;                     ///< of the process
  std::int64_t replayed_ops = 0;  ///< of the last step
  std::int64_t evictions = 0;     ///< of all steps
  struct Scaled {
    std::int64_t skipped_steps = 0;    ///< of the whole run, whose gradients overflowed
    std::optional<double> loss_scale;  ///< at the end, where losses are scaled
  } scaled;
  bool interrupted = false;
  std::int64_t resumed_from = 0;  ///< steps that an earlier run had done
  std::int64_t states_saved = 0;
};

/// What every result says of its plan, and of the memory that following it took.
nlohmann::ordered_json plan_figures(const plan::MemoryPlan& plan, const StepPeaks& peaks, const memory::Stats& memory);

nlohmann::ordered_json to_json(const TrainResult& result);

/// The middle of `values`, 0 when there are none.
double median(std::vector<double> values);

}  // namespace snug::train
