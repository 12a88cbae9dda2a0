#include "snug/replay/step_trace.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "snug/base/clock.h"
#include "snug/base/match.h"
#include "snug/record/tape.h"

namespace snug::replay {
namespace {

struct Observers {
  std::mutex mutex;
  std::unordered_map<const record::Tape*, StepObserver*> of;
};

Observers& observers() {
  static auto* all = new Observers;  // never destroyed: threads of the engine may outlive main()
  return *all;
}

template <class Event>
std::int64_t count(const std::vector<StepTrace::Entry>& entries) {
  return std::ranges::count_if(entries, [](const auto& entry) { return std::holds_alternative<Event>(entry.event); });
}

}  // namespace

ObservedTape::ObservedTape(const record::Tape& tape, StepObserver& observer) : tape_(tape) {
  const std::lock_guard lock(observers().mutex);
  observers().of[&tape] = &observer;
}

ObservedTape::~ObservedTape() {
  const std::lock_guard lock(observers().mutex);
  observers().of.erase(&tape_);
}

void tell(const record::Tape& tape, const StepEvent& event) {
  const std::lock_guard lock(observers().mutex);
  if (const auto found = observers().of.find(&tape); found != observers().of.end()) found->second->happened(event);
}

std::int64_t StepTrace::replayed_ops() const { return count<Replayed>(entries); }
std::int64_t StepTrace::evictions() const { return count<Evicted>(entries); }

StepTracer::StepTracer(const record::Tape& tape, const memory::DeviceMemory& memory)
    : tape_(tape), memory_(memory), began_(monotonic_seconds()) {}

StepTrace::Cause StepTracer::cause_of(const StepEvent& event) {
  using Cause = StepTrace::Cause;
  return std::visit(
      Match{[&](const Evicted& evicted) {
              evicted_.insert(tape_.flow().producer(evicted.value));
              return Cause::Pressure;
            },
            [&](const Replayed& replayed) { return evicted_.contains(replayed.op) ? Cause::Pressure : Cause::Plan; },
            [](const auto&) { return Cause::Program; }},
      event);
}

void StepTracer::happened(const StepEvent& event) {
  trace_.entries.push_back({event, cause_of(event), monotonic_seconds() - began_, memory_.stats().by_tag});
}

}  // namespace snug::replay
