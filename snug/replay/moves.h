#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/tiers.h"
#include "snug/plan/step/move_cost.h"
#include "snug/replay/record_step.h"

namespace snug::replay {

/// What it takes to copy contents of the device's memory to a tier and back, the host's memory being there already:
/// measured, once for each type of device, by the device's clock; between the CPU's memory and the host's with more
/// than its caches hold, if there is `room` for that, of the device and the tier; with less it is measured within that,
/// and where there is next to none, it is taken to be slow.
plan::MoveCost measured_move_cost(memory::DeviceMemory& memory, memory::Tier tier = memory::Tier::Host,
                                  Bytes room = std::numeric_limits<Bytes>::max());
/// What is left of the limit on that memory, if there is one.
[[nodiscard]] Bytes room_within(std::optional<Bytes> limit, const memory::DeviceMemory& memory);

/// Lets plans for the steps move values to the tiers that have budgets, within what is left of those. What that costs
/// is measured within the limit, if there is one. Throws Error where there is no folder for the disk's.
void let_move(std::vector<RecordedStep>& kinds, memory::DeviceMemory& memory, memory::Tiers& tiers,
              std::optional<Bytes> limit);

}  // namespace snug::replay
