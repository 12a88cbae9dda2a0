#pragma once

#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/tiers.h"
#include "snug/plan/step/move_cost.h"
#include "snug/replay/record_step.h"

namespace snug::replay {

/// What it takes to copy contents of the device's memory to the host's and back, the host's memory being there already:
/// measured, once for each type of device, by the device's clock; on the CPU with more than its caches hold. Where
/// there is no room for that it is taken to be slow.
plan::MoveCost measured_move_cost(memory::DeviceMemory& memory);

/// Lets plans for the steps move values to the host, within its budget; nothing where it has none.
void let_move(std::vector<RecordedStep>& kinds, memory::DeviceMemory& memory, const memory::Tiers& tiers);

}  // namespace snug::replay
