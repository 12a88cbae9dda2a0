#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "snug/memory/stats.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/report/progress.h"
#include "snug/train/config.h"
#include "snug/train/gradient_error.h"

namespace snug::train {

/// What a comparison of steps with and without the plan found.
struct VerifyResult {
  std::int64_t steps = 0;      ///< run under the plan
  std::int64_t compared = 0;   ///< of those, run without it too
  std::int64_t tensors = 0;    ///< compared: loss, gradients, buffers and weights of every step
  std::int64_t different = 0;  ///< of those, with any bit that differs
  double max_abs_difference = 0;
  std::string first_different;  ///< the step and the name of the first
  // Where plans leave some of what autograd saves to a lossy codec (memory.activations), gradients and weights are
  // compared with those of steps that do so too and keep all else; and gradients with exact ones:
  Bytes lossy = 0;                            ///< of a step's saved values, in all planned ones the most
  std::vector<GradientError> gradient_error;  ///< by layer, the largest first; none where no gradients are left
  double gradient_error_of_all = 0;
  std::int64_t replayed_ops = 0;  ///< in all planned steps together
  std::int64_t evictions = 0;
  double plain_seconds_median = 0;  ///< forward and backward, interleaved with the planned ones
  double planned_seconds_median = 0;
  plan::MemoryPlan plan;     ///< of the step that ran last
  Bytes predicted_peak = 0;  ///< the highest of all kinds of steps
  memory::Stats memory;      ///< of the planned steps
};

nlohmann::ordered_json to_json(const VerifyResult& result);

/// Runs steps twice from the same state: as PyTorch does, and under the plan and its cap. Compares loss, every
/// gradient, every buffer, the random generator and the weights after the optimizer's step bitwise, then goes on from
/// the planned one. Steps whose plans are lossy run once more, with nothing else of their plan, and their gradients and
/// weights are compared with those. `every`: only each so many steps; the others are run under the plan alone.
VerifyResult verify(const Config& config, std::int64_t steps, std::int64_t every, report::Progress& progress);

}  // namespace snug::train
