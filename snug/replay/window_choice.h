#pragma once

#include <cstdint>
#include <vector>

#include "snug/base/agreement.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/budget.h"
#include "snug/replay/planned_step.h"
#include "snug/replay/streamed_tensors.h"

namespace snug::replay {

/// A window, and what a step that is run again and again is predicted to copy and wait for it, beside what its plan
/// says.
struct OpenedWindow {
  Bytes streamed = 0;  ///< all that it is for; where that is nothing, there is no window
  plan::Window window;
  plan::WindowCost cost;
  Bytes floor = 0;  ///< the smallest budget, which has the smallest window
  Bytes spare = 0;  ///< what this window takes more than that
};

/// Opens the window with which these steps take the least time within the budgets, plans and window together; its
/// memory is counted in their graphs. The tensors are of the memory's device, the steps' first; `kinds` as
/// record_micro_batches() has them, of so many micro-batches. Throws DoesNotFit where not even the smallest window
/// leaves room for the steps; UsageError where the tensors are on another device; GroupEnded where another process has
/// thrown. Where plans must be the same in all of the group, all have the largest window that one of them would choose:
/// they call it with the same steps, and nullptr where they stream nothing.
OpenedWindow open_best_window(StreamedTensors* streamed, std::vector<PlannedStep>& kinds, const plan::Budgets& budgets,
                              memory::DeviceMemory& memory, std::int64_t micro_batches = 1,
                              Agreement& group = *alone());

}  // namespace snug::replay
