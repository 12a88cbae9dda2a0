#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <vector>

#include "snug/memory/held_limit.h"
#include "snug/plan/budget.h"
#include "snug/record/tape.h"
#include "snug/replay/device_budget.h"
#include "snug/replay/eviction.h"

namespace snug::replay {

/// With the index of the device that is in use now where there is none: "cuda" is another one later.
std::vector<DeviceBudget> with_indices(std::vector<DeviceBudget> budgets);

/// Of the device that steps are planned for, and of others, which are as with_indices() has them.
plan::Budgets budgets_of(std::optional<plan::Budget> own, const std::vector<DeviceBudget>& others);

/// In the order of budgets_of().
std::vector<memory::DeviceMemory*> memories_of(memory::DeviceMemory& own, const std::vector<DeviceBudget>& others);

/// Throws UsageError for budgets that are not positive, for a device that has two or that nobody knows the memory of,
/// and for `own`, which has another.
void check_other_budgets(const std::vector<DeviceBudget>& budgets, c10::Device own);

/// Throws UsageError where the parameters are on a device that has no budget, neither `own` nor among the others: it
/// would have neither a plan nor a cap.
void check_all_have_budgets(const std::vector<at::Tensor>& parameters, const std::vector<DeviceBudget>& budgets,
                            c10::Device own);

/// Caps further devices that a step uses while it lives.
class OtherLimits {
 public:
  /// The budgets are as with_indices() and check_other_budgets() have them.
  explicit OtherLimits(const std::vector<DeviceBudget>& budgets);

 private:
  std::vector<std::unique_ptr<memory::HeldLimit>> limits_;
};

/// Drops what a tape has on the device, and on further ones, when they are full.
class TapeEvictors {
 public:
  TapeEvictors(const std::shared_ptr<record::Tape>& tape, memory::DeviceMemory& own,
               const std::vector<DeviceBudget>& budgets, EvictionCost cost);

 private:
  std::vector<std::unique_ptr<Evictor>> evictors_;
};

}  // namespace snug::replay
