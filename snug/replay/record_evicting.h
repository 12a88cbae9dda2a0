#pragma once

#include "snug/replay/agreement.h"
#include "snug/replay/eviction.h"
#include "snug/replay/record_step.h"

namespace snug::replay {

/// Ends the recording of a step where that of another process of the group has been refused (see Agreement): what this
/// one would wait for does not come.
class RefusedElsewhere : public GroupEnded {
 public:
  RefusedElsewhere();
};

/// record_step, which under a limit evicts by this cost. Asks the group twice in each run, at the end of its forward
/// pass and at its own end, and throws RefusedElsewhere where one of the others says no. Whoever catches anything else
/// has to say so to the group, once: that this one is refused, or that it has failed.
RecordedStep record_step_evicting(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory,
                                  const RecordOptions& options);

}  // namespace snug::replay
