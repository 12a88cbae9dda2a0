#pragma once

#include "snug/replay/eviction.h"
#include "snug/replay/record_step.h"

namespace snug::replay {

/// record_step, which under a limit evicts by this cost.
RecordedStep record_step_evicting(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory,
                                  const RecordOptions& options);

}  // namespace snug::replay
