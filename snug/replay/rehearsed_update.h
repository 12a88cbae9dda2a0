#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/record/profiler.h"
#include "snug/record/tape.h"
#include "snug/replay/rehearsal.h"
#include "snug/replay/undone_writes.h"
#include "snug/replay/uses_measured.h"

namespace snug::replay {

/// The update as it is rehearsed, once in a recording: where a step function is about to run its own, or at the end.
class RehearsedUpdate {
 public:
  RehearsedUpdate(const Rehearsal& rehearsal, UndoneWrites& writes) : rehearsal_(rehearsal), writes_(writes) {}
  ~RehearsedUpdate();
  RehearsedUpdate(const RehearsedUpdate&) = delete;
  RehearsedUpdate& operator=(const RehearsedUpdate&) = delete;

  /// At the end of what this profiler has noted of the tape. `parameters`: those that may have gradients.
  void run(record::Profiler& profiler, const record::Tape& tape, UsesMeasured& uses,
           const std::vector<at::Tensor>& parameters);

  /// Before the step runs. Returns the bytes of state that this has made, by device.
  std::vector<Bytes> prepare(const std::vector<memory::DeviceMemory*>& devices);

  /// The state that it has made goes.
  void forget();

 private:
  const Rehearsal& rehearsal_;
  UndoneWrites& writes_;
  bool begun_ = false;
  bool made_ = false;
};

}  // namespace snug::replay
