#include "snug/replay/other_devices.h"

#include <fmt/format.h>

#include <algorithm>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"

namespace snug::replay {

std::vector<DeviceBudget> with_indices(std::vector<DeviceBudget> budgets) {
  for (DeviceBudget& budget : budgets) budget.device = memory::with_index(budget.device);
  return budgets;
}

plan::Budgets budgets_of(std::optional<plan::Budget> own, const std::vector<DeviceBudget>& others) {
  plan::Budgets budgets(own);
  for (const auto& [device, bytes] : others) budgets.others.push_back({device.str(), plan::Budget::for_limit(bytes)});
  return budgets;
}

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

void check_all_have_budgets(const std::vector<at::Tensor>& parameters, const std::vector<DeviceBudget>& budgets,
                            c10::Device own) {
  for (const at::Tensor& p : parameters) {
    const auto is_there = [&](c10::Device device) { return memory::with_index(device) == p.device(); };
    if (is_there(own) || std::ranges::any_of(budgets, is_there, &DeviceBudget::device)) continue;
    throw UsageError(
        fmt::format("fit: the budget is for {}, and the step has parameters on {}; name its device, or give the others "
                    "a budget in other_budgets",
                    memory::with_index(own).str(), p.device().str()));
  }
}

std::vector<memory::DeviceMemory*> memories_of(memory::DeviceMemory& own, const std::vector<DeviceBudget>& others) {
  std::vector<memory::DeviceMemory*> all{&own};
  for (const DeviceBudget& other : others) all.push_back(&memory::device_memory(other.device));
  return all;
}

OtherLimits::OtherLimits(const std::vector<DeviceBudget>& budgets) {
  for (const auto& [device, bytes] : budgets) {
    memory::DeviceMemory& memory = memory::device_memory(device);
    // A session's own, mostly.
    if (memory.stats().limit != bytes) limits_.push_back(std::make_unique<memory::HeldLimit>(memory, bytes));
  }
}

TapeEvictors::TapeEvictors(const std::shared_ptr<record::Tape>& tape, memory::DeviceMemory& own,
                           const std::vector<DeviceBudget>& budgets, EvictionCost cost) {
  for (memory::DeviceMemory* const memory : memories_of(own, budgets))
    evictors_.push_back(std::make_unique<Evictor>(tape, *memory, cost));
}

}  // namespace snug::replay
