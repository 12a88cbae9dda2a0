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

RecordedStep record_step_within(Bytes limit, const Forward& forward, memory::DeviceMemory& memory,
                                const Rehearsal& update) {
  if (limit <= 0) throw UsageError(fmt::format("fit: the budget is {} bytes; it must be positive", limit));
  try {
    const LimitScope scope(memory, limit);
    return record_step(forward, memory, update);
  } catch (...) {
    const auto refusal = memory::refusal_in(std::current_exception());
    if (!refusal) throw;
    // Everything that can be evicted was; what was missing then is the least that is missing.
    const auto& d = *refusal;
    const Bytes floor = plan::Budget::for_limit(limit).floor_for(d.stats.allocated + d.requested);
    throw DoesNotFit({limit, floor, d.stats.by_tag, d.requested, d.operation, "eviction", /*only_begun=*/true});
  }
}

Session fit(const Forward& forward, const FitOptions& options) {
  memory::DeviceMemory& memory = memory::device_memory(options.device_type);
  RecordedStep step = record_step_within(options.device, forward, memory, options.update);
  return Session(std::move(step), options.strategy, plan::Budget::for_limit(options.device), memory);
}

}  // namespace snug::replay
