#include "snug/replay/other_devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"

namespace snug::replay {

void check_other_budgets(const std::vector<DeviceBudget>& budgets, c10::Device own) {
  std::vector<c10::Device> known{memory::with_index(own)};
  for (const auto& [device, bytes] : budgets) {
    if (bytes <= 0) {
      throw UsageError(fmt::format("fit: the budget of {} is {} bytes; it must be positive", device.str(), bytes));
    }
    (void)memory::device_memory(device);
    if (std::ranges::find(known, memory::with_index(device)) != known.end()) {
      throw UsageError(fmt::format("fit: {} has two budgets; give it one, as `budget` if the step is planned for it",
                                   memory::with_index(device).str()));
    }
    known.push_back(memory::with_index(device));
  }
}

OtherDevices::OtherDevices(const std::vector<DeviceBudget>& budgets, const std::shared_ptr<record::Tape>& tape,
                           EvictionCost cost) {
  for (const auto& [device, bytes] : budgets) {
    memory::DeviceMemory& memory = memory::device_memory(device);
    limits_.push_back(std::make_unique<memory::HeldLimit>(memory, bytes));
    evictors_.push_back(std::make_unique<Evictor>(tape, memory, cost));
  }
}

}  // namespace snug::replay
