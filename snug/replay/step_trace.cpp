#include "snug/replay/step_trace.h"

#include <algorithm>

#include "snug/base/clock.h"
#include "snug/record/tape.h"

namespace snug::replay {
namespace {

template <class Event>
std::int64_t count(const std::vector<StepTrace::Entry>& entries) {
  return std::ranges::count_if(entries, [](const auto& entry) { return std::holds_alternative<Event>(entry.event); });
}

}  // namespace

std::int64_t StepTrace::replayed_ops() const { return count<Replayed>(entries); }
std::int64_t StepTrace::evictions() const { return count<Evicted>(entries); }

StepTracer::StepTracer(const memory::DeviceMemory& memory) : memory_(memory), began_(monotonic_seconds()) {}

void StepTracer::settle_ends() { add(ForwardEnded{}, StepTrace::Cause::Program); }

void StepTracer::backward_ends() { add(BackwardEnded{}, StepTrace::Cause::Program); }

void StepTracer::evicted(const record::Tape& tape, plan::ValueId value) {
  evicted_.insert(tape.flow().producer(value));
  add(Evicted{value}, StepTrace::Cause::Pressure);
}

void StepTracer::replayed(const record::Tape& /*tape*/, plan::OpId op) {
  add(Replayed{op}, evicted_.contains(op) ? StepTrace::Cause::Pressure : StepTrace::Cause::Plan);
}

void StepTracer::add(const StepEvent& event, StepTrace::Cause cause) {
  trace_.entries.push_back({event, cause, monotonic_seconds() - began_, memory_.stats().by_tag});
}

}  // namespace snug::replay
