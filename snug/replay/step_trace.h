#pragma once

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/stats.h"
#include "snug/plan/step/ids.h"

namespace snug::record {
class Tape;
}

namespace snug::replay {

struct ForwardEnded {};
struct BackwardEnded {};  ///< not when it fails
struct Evicted {
  plan::ValueId value = plan::kNoValue;
};
struct Replayed {
  plan::OpId op = plan::kNoOp;
};
/// What happens in a step.
using StepEvent = std::variant<ForwardEnded, BackwardEnded, Evicted, Replayed>;

/// What happened in a step, in order.
struct StepTrace {
  enum class Cause : std::uint8_t {
    Program,  ///< the step function came so far
    Plan,     ///< a result of the operator was dropped, as the plan says
    Pressure  ///< the limit was near, then or when a result of the operator was evicted
  };
  struct Entry {
    StepEvent event;
    Cause cause = Cause::Program;
    double seconds = 0;     ///< since the step began
    memory::ByTag bytes{};  ///< allocated on the device, when it had happened
  };
  std::vector<Entry> entries;

  [[nodiscard]] std::int64_t replayed_ops() const;
  [[nodiscard]] std::int64_t evictions() const;
};

/// Is told of what happens on a tape: by the threads that it happens on, one at a time.
class StepObserver {
 public:
  StepObserver() = default;
  virtual ~StepObserver() = default;
  StepObserver(const StepObserver&) = delete;
  StepObserver& operator=(const StepObserver&) = delete;
  /// May not allocate on the device, nor tell() anything.
  virtual void happened(const StepEvent& event) = 0;
};

/// While it lives, the observer is told of what happens on the tape. Both must outlive it; a tape has one at a time.
class ObservedTape {
 public:
  ObservedTape(const record::Tape& tape, StepObserver& observer);
  ~ObservedTape();
  ObservedTape(const ObservedTape&) = delete;
  ObservedTape& operator=(const ObservedTape&) = delete;

 private:
  const record::Tape& tape_;
};

/// Tells the tape's observer, if it has one.
void tell(const record::Tape& tape, const StepEvent& event);

/// Writes the trace of one step.
class StepTracer final : public StepObserver {
 public:
  StepTracer(const record::Tape& tape, const memory::DeviceMemory& memory);
  void happened(const StepEvent& event) override;
  /// When the step is over.
  [[nodiscard]] StepTrace take() { return std::move(trace_); }

 private:
  StepTrace::Cause cause_of(const StepEvent& event);

  const record::Tape& tape_;
  const memory::DeviceMemory& memory_;
  double began_;
  StepTrace trace_;
  std::unordered_set<plan::OpId> evicted_;  // results of
};

}  // namespace snug::replay
