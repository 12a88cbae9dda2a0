#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "snug/memory/awaited_frees.h"
#include "snug/memory/held_limit.h"
#include "snug/record/profiler.h"
#include "snug/record/tape.h"
#include "snug/replay/eviction.h"
#include "snug/replay/gradient_hooks.h"
#include "snug/replay/other_devices.h"
#include "snug/replay/session_state.h"
#include "snug/replay/step_run.h"
#include "snug/replay/step_trace.h"

namespace snug {

/// One step of a session, from its call to its end.
class Session::Step {
 public:
  explicit Step(State& state);
  ~Step();
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  /// As Session::backward has it.
  at::Tensor run(const replay::Forward& forward);

 private:
  /// What an unknown step takes is noted as it runs, as far as its backward pass: what comes after it is no part of it.
  struct Unknown {
    std::shared_ptr<record::Profiler> profiler;  // while it may be unknown, and runs
    bool unexpected = false;                     // the first of its kind, or one pass more than steps had
    std::optional<plan::StepGraph> graph;
    /// The backward pass is over.
    void end(record::Tape& tape);
  };
  /// A forward pass, the step's own or that of one of its micro-batches, and the backward pass that belongs to it.
  struct Pass {
    std::shared_ptr<record::Tape> tape;
    std::unique_ptr<replay::TapeEvictors> evictors;
    bool is_micro_batch = false;
    bool went_backward = false;
    int stage = 0;
    int number = 0;  // in the step, from 0 on
    replay::StepKind kind = replay::StepKind::First;
    Unknown unknown;
  };

  std::shared_ptr<record::Tape> forward_begins(int stage);
  void forward_over(record::Tape& tape);
  void backward_begins(record::Tape& tape, const replay::StepRun::Roots& roots);
  void find_parameters(Pass& pass, const replay::StepRun::Roots& roots);
  void backward_over(record::Tape& tape);
  void reached(record::Tape& tape);
  void failed(record::Tape& tape);

  /// Its first operator is about to run: what it follows.
  record::DecideLater::Decision decide(Pass& pass);
  void begin(replay::StepKind kind);
  void end_earlier_passes();
  /// Throws what a refusal has been meanwhile, even where the function catches it.
  at::Tensor run_unless_refused(const replay::Forward& forward);
  void forget_wrong_gradients() const;
  /// What it did is counted, and what it was becomes known.
  void conclude(Pass& pass);
  /// What has been new becomes known.
  void learn();
  void release(Pass& pass) const;
  using Passes = std::vector<std::unique_ptr<Pass>>;
  [[nodiscard]] Passes::iterator find(const record::Tape& tape);

  State& state_;
  const std::vector<memory::DeviceMemory*> devices_;
  std::optional<memory::HeldLimit> for_this_step_;  // a younger session, of another model perhaps, has its own budget
  std::optional<replay::GradientHooks> gradients_leave_;
  replay::OtherLimits other_limits_;
  memory::AwaitedFrees awaited_;
  std::shared_ptr<replay::StepTracer> tracer_;
  record::Profiler::Turns turns_;
  Passes passes_;
  struct New {
    std::optional<plan::StepGraph> graph;  // where it was profiled
    std::uint64_t operators = 0;           // see CallLog::chain
    replay::StepKind kind = replay::StepKind::First;
    int stage = 0;
    int number = 0;
    bool is_first_of_kind = false;
  };
  std::vector<New> new_;

  replay::StepRun step_;
  std::exception_ptr refusal_;
  StepReport report_;
  bool begun_ = false;
  int passes_begun_ = 0;
  bool began_without_gradients_ = false;             // the first pass
  bool failed_differing_ = false;                    // a pass, as a replay had other bits
  std::int32_t in_flight_ = 0, most_in_flight_ = 1;  // micro-batches
};

}  // namespace snug
