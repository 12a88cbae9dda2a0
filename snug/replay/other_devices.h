#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "snug/memory/held_limit.h"
#include "snug/record/tape.h"
#include "snug/replay/device_budget.h"
#include "snug/replay/eviction.h"

namespace snug::replay {

/// Throws UsageError for budgets that are not positive, for a device that has two or that nobody knows the memory of,
/// and for `own`, which has another.
void check_other_budgets(const std::vector<DeviceBudget>& budgets, c10::Device own);

/// Caps further devices that a step uses while it lives, and drops what the tape has there when they are full.
class OtherDevices {
 public:
  /// The budgets are as check_other_budgets() has them.
  OtherDevices(const std::vector<DeviceBudget>& budgets, const std::shared_ptr<record::Tape>& tape, EvictionCost cost);

 private:
  std::vector<std::unique_ptr<memory::HeldLimit>> limits_;
  std::vector<std::unique_ptr<Evictor>> evictors_;
};

}  // namespace snug::replay
