#include "snug/replay/fit.h"

#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/memory/out_of_budget.h"
#include "snug/plan/does_not_fit.h"

namespace snug::replay {
namespace {

/// Lifts the limit again when planning fails.
class LimitScope {
 public:
  LimitScope(memory::DeviceMemory& memory, Bytes limit) : memory_(memory), before_(memory.stats().limit) {
    memory_.set_limit(limit);
  }
  ~LimitScope() { memory_.set_limit(before_); }
  LimitScope(const LimitScope&) = delete;
  LimitScope& operator=(const LimitScope&) = delete;

 private:
  memory::DeviceMemory& memory_;
  std::optional<Bytes> before_;
};

}  // namespace

Session fit(const Forward& forward, const FitOptions& options) {
  if (options.device <= 0) {
    throw UsageError(fmt::format("fit: the budget is {} bytes; it must be positive", options.device));
  }
  memory::DeviceMemory& memory = memory::device_memory(options.device_type);
  RecordedStep step;
  try {
    const LimitScope limit(memory, options.device);
    step = record_step(forward, memory);
  } catch (const OutOfBudget& error) {
    // Everything that can be evicted was; what was missing then is the least that is missing.
    const auto& d = error.details();
    const Bytes floor = plan::Budget::for_limit(options.device).floor_for(d.stats.allocated + d.requested);
    throw DoesNotFit({options.device, floor, d.stats.by_tag, d.requested, d.operation, "eviction"});
  }
  return Session(std::move(step), options.strategy, plan::Budget::for_limit(options.device), memory);
}

}  // namespace snug::replay
