#pragma once

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/stats.h"
#include "snug/plan/step/ids.h"
#include "snug/record/tape_observer.h"

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
    memory::ByTag bytes{};  ///< allocated on the device when it had happened
  };
  std::vector<Entry> entries;

  [[nodiscard]] std::int64_t replayed_ops() const;
  [[nodiscard]] std::int64_t evictions() const;
};

/// Writes the trace of one step, from its making on.
class StepTracer final : public record::TapeObserver {
 public:
  /// `memory` must outlive the tape that this observes.
  explicit StepTracer(const memory::DeviceMemory& memory);
  [[nodiscard]] bool sees_recording() const override { return false; }
  void settle_ends() override;
  void backward_ends() override;
  void evicted(const record::Tape& tape, plan::ValueId value) override;
  void replayed(const record::Tape& tape, plan::OpId op) override;
  /// When the step is over.
  [[nodiscard]] StepTrace take() { return std::move(trace_); }

 private:
  void add(const StepEvent& event, StepTrace::Cause cause);

  const memory::DeviceMemory& memory_;
  double began_;
  StepTrace trace_;
  std::unordered_set<plan::OpId> evicted_;  // results of
};

}  // namespace snug::replay
