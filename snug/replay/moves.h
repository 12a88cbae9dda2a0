#pragma once

#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/tiers.h"
#include "snug/plan/step/move_cost.h"
#include "snug/replay/record_step.h"

namespace snug::replay {

/// What it takes to copy contents of the device's memory to a tier and back, the host's memory being there already:
/// measured, once for each type of device, by the device's clock; between the CPU's memory and the host's with more
/// than its caches hold. Where there is no room for that it is taken to be slow.
plan::MoveCost measured_move_cost(memory::DeviceMemory& memory, memory::Tier tier = memory::Tier::Host);

/// Lets plans for the steps move values to the tiers that have budgets, within what is left of those. Throws Error
/// where there is no folder for the disk's.
void let_move(std::vector<RecordedStep>& kinds, memory::DeviceMemory& memory, memory::Tiers& tiers);

}  // namespace snug::replay
