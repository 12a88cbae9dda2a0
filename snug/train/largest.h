#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/report/progress.h"
#include "snug/train/config.h"

namespace snug::train {

/// What of a step is made larger.
enum class Extent : std::uint8_t {
  Batch,     ///< train.batch: sequences per step, whole ones for each micro-batch
  Sequence,  ///< tokens per sequence
  Blocks,    ///< model.blocks, of new models
};

template <>
inline constexpr std::array kWords<Extent>{std::pair{"batch", Extent::Batch}, std::pair{"sequence", Extent::Sequence},
                                           std::pair{"blocks", Extent::Blocks}};

/// The largest step that fits a budget.
struct Largest {
  std::int64_t size = 0;
  std::optional<std::int64_t> limit;  ///< whatever memory there is: the model takes no longer sequence
  std::int64_t by_memory = 0;         ///< about how large one could be if there were no limit
  Bytes fixed = 0;                    ///< what a step takes whatever its size is, about
  double bytes_each = 0;              ///< for each sequence, token or block, at the smallest peak
  Bytes unplanned_peak = 0;           ///< what it would take without a plan
  Bytes predicted_peak = 0;           ///< of its plan
  Bytes measured_peak = 0;            ///< of a step that was run under it
  double step_seconds = 0;            ///< of that step
};

/// Finds it: the smallest peaks of two small steps give a line, and the size where it meets the budget is tried, which
/// is to record a step of it under the cap, plan and run it, and then others between the largest that fitted and the
/// smallest that did not. Batches and blocks are found exactly, sequences to a multiple of 64 or, of long ones, to 2 %.
/// Batches are of random tokens; the rest is as configured. Needs warm_up(). Throws DoesNotFit or OutOfBudget when not
/// even the smallest fits, and UsageError for blocks of a pretrained model.
Largest largest(const Config& config, Extent extent, Bytes budget, report::Progress& progress);

}  // namespace snug::train
