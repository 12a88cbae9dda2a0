#pragma once

#include <c10/core/Storage.h>

#include <exception>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/replay/micro_batch_graphs.h"
#include "snug/replay/record_step.h"
#include "snug/replay/recording_scope.h"
#include "snug/replay/rehearsed_update.h"
#include "snug/replay/step_run.h"
#include "snug/replay/uses_measured.h"
#include "snug/replay/weak_tensors.h"

namespace snug::replay {

/// The others of the group have come as far as this process has, or nobody goes on: throws RefusedElsewhere.
void agree(const RecordOptions& options);

struct Recorded {
  RecordedStep step;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> leaves;  ///< that it read
};

/// One run of a step that is recorded, which leaves no trace. As record_step_evicting has it, but for the vote at its
/// end.
class StepRecording {
 public:
  /// `options` must outlive it.
  StepRecording(EvictionCost cost, memory::DeviceMemory& memory, const RecordOptions& options);
  Recorded run(const Forward& forward);

 private:
  std::shared_ptr<record::Tape> forward_begins(int stage);
  void forward_over(record::Tape& tape);
  void backward_begins(record::Tape& tape, const StepRun::Roots& roots);
  void backward_over(StepRun& run, record::Tape& tape);
  void reached(record::Tape& tape);
  void failed(record::Tape& tape);
  void update_begins(StepRun& run);
  void run_update();
  /// The last pass that has gone backward is over: its graph is noted.
  void note_ended();
  /// Of the leaves that a call of autograd::grad() goes through, whose results the function may put in their place.
  void note_gradients(const StepRun::Roots& roots);
  /// Thrown again at the end where the function catches it.
  [[noreturn]] void refuse(const UsageError& why);

  const RecordOptions& options_;
  RecordingScope scope_;
  Recorded recorded_;
  WeakTensors parameters_;  // those that the step makes go when it lets go of them
  RehearsedUpdate update_;
  MicroBatchGraphs micro_batches_;
  StepRun* run_ = nullptr;
  UsesMeasured* uses_ = nullptr;
  RecordedPass* whole_ = nullptr;  // the step's own
  std::optional<plan::StepGraph> of_whole_;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_before_;  // of leaves
  std::unordered_set<const void*> noted_;
  std::vector<record::Tape*> reached_;           // by the backward pass of another one, which runs
  record::Tape* ended_ = nullptr;                // has gone backward, and is not noted
  std::vector<Bytes> prepared_, state_to_come_;  // of state, by device
  std::exception_ptr ended_by_group_, refused_;
  bool backward_failed_ = false;
};

}  // namespace snug::replay
