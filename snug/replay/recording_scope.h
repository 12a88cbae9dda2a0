#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "snug/memory/awaited_frees.h"
#include "snug/memory/device_memory.h"
#include "snug/record/profiler.h"
#include "snug/record/tape.h"
#include "snug/replay/eviction.h"
#include "snug/replay/gradient_hooks.h"
#include "snug/replay/gradients_aside.h"
#include "snug/replay/other_devices.h"
#include "snug/replay/record_step.h"
#include "snug/replay/undone_draws.h"
#include "snug/replay/undone_writes.h"

namespace snug::replay {

std::vector<Bytes> allocated_on(const std::vector<memory::DeviceMemory*>& devices);
/// What has come since.
std::vector<Bytes> more_than(const std::vector<Bytes>& before, const std::vector<memory::DeviceMemory*>& devices);
/// So that what is said of the step's parts has them as such.
void tag_weights(const std::vector<at::Tensor>& parameters);

/// A forward pass that is recorded and profiled, the step's own or that of one of its micro-batches, and its backward
/// pass.
struct RecordedPass {
  std::shared_ptr<record::Profiler> profiler;
  std::shared_ptr<record::Tape> tape;
  std::unique_ptr<TapeEvictors> evictors;
  bool is_micro_batch = false;
  int stage = 0;
};

/// What records one run of a step, and what puts everything back at its end as it was before.
class RecordingScope {
 public:
  /// The gradients of all are put aside; those that have gradients have others then, of zeros.
  RecordingScope(EvictionCost cost, memory::DeviceMemory& memory, const RecordOptions& options);
  ~RecordingScope();
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

  /// What records the step.
  RecordedPass& begin_pass(record::Policy policy = record::KeepSaved{});
  /// What records its next micro-batch, where what is there beside these is none of them.
  RecordedPass& begin_micro_batch();
  [[nodiscard]] RecordedPass& pass_of(const record::Tape& tape);
  /// It goes on: its clock leaves out what is done to undo writes.
  void use_clock_of(RecordedPass& pass) { writes_.use(&pass.profiler->clock()); }
  /// It is over, and noted. The tape goes.
  void end_pass(const record::Tape& tape);
  static void finish_forward(RecordedPass& pass);

  /// Of these parameters, as soon as their gradients are there.
  void update_each(const Rehearsal& rehearsal, const std::vector<at::Tensor>& parameters);
  /// Those of streamed parameters leave as they do.
  void take_gradients(const std::vector<at::Tensor>& parameters);

  /// That micro-batches have of a device now, which have gone forward and not backward. By device.
  [[nodiscard]] Bytes held(std::size_t device) { return turns_.held(device); }
  [[nodiscard]] const std::vector<memory::DeviceMemory*>& devices() const noexcept { return devices_; }
  /// What stands in for what the planned step will not have. By device.
  [[nodiscard]] const std::vector<Bytes>& not_of_steps() const noexcept { return not_of_steps_; }
  /// Gradients that are there from the first, by device.
  [[nodiscard]] const std::vector<Bytes>& gradients() const noexcept { return gradients_; }
  [[nodiscard]] GradientsAside& aside() noexcept { return aside_; }
  [[nodiscard]] UndoneWrites& writes() noexcept { return writes_; }

 private:
  const RecordOptions& options_;
  EvictionCost cost_;
  std::vector<memory::DeviceMemory*> devices_;
  std::vector<Bytes> before_;
  UndoneDraws draws_;
  GradientsAside aside_;
  std::vector<Bytes> not_of_steps_;
  UndoneWrites writes_;
  OtherLimits other_limits_;
  memory::AwaitedFrees awaited_;
  record::Profiler::Turns turns_;
  std::vector<std::unique_ptr<RecordedPass>> passes_;
  std::optional<GradientHooks> in_backward_;
  std::vector<Bytes> gradients_;
};

}  // namespace snug::replay
