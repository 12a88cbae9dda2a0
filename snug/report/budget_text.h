#pragma once

#include <string>

#include "snug/base/bytes.h"

namespace snug::report {

/// "225.0 MiB (49 %)": a budget in bytes, and the percentage of what a step takes unplanned that would be written for
/// it, which is without the allocator's reserve (plan::Budget::for_share).
std::string budget_text(Bytes limit, Bytes unplanned_peak, int digits = 0);

}  // namespace snug::report
