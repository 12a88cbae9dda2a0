#pragma once

#include <optional>
#include <string>

#include "snug/replay/record_step.h"

namespace snug::replay {

/// Runs `forward` and tells which operator's output was the first to hold a NaN or an infinity: its name, its place
/// in the step and the shape of the output. nullopt when all outputs are finite. Slow; for finding the cause of a
/// non-finite loss.
std::optional<std::string> first_non_finite(const Forward& forward);

}  // namespace snug::replay
