#pragma once

#include <cstdint>

#include "snug/base/bytes.h"
#include "snug/report/progress.h"
#include "snug/train/experiment.h"

namespace snug::train {

inline constexpr std::int64_t kSequenceMultiple = 64;

/// The longest sequence that one step of an experiment can have within a budget.
struct LongestSequence {
  std::int64_t tokens = 0;
  std::int64_t made_for = 0;   ///< the longest that the model takes, whatever memory there is
  std::int64_t by_memory = 0;  ///< about how long one could be if the model took it
  Bytes fixed = 0;             ///< what a step takes whatever its length is, about
  double bytes_per_token = 0;  ///< at the smallest peak
  Bytes predicted_peak = 0;    ///< of the plan for that length
  Bytes measured_peak = 0;     ///< of a step that was run under it
  double step_seconds = 0;     ///< of that step
  Bytes unplanned_peak = 0;    ///< what it would take without a plan
};

/// Finds it: the smallest peaks of two short sequences give a line, and the length where it meets the budget is tried,
/// a multiple of `multiple`, and shortened until a step of it has been recorded, planned and run under the cap.
/// Sequences are of random tokens, in batches as configured. Throws DoesNotFit when not even a sequence of `multiple`
/// tokens fits.
LongestSequence longest_sequence(Experiment& experiment, Bytes budget, report::Progress& progress,
                                 std::int64_t multiple = kSequenceMultiple);

}  // namespace snug::train
