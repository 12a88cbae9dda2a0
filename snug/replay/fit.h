#pragma once

#include <c10/core/DeviceType.h>

#include <functional>
#include <string>

#include "snug/base/bytes.h"
#include "snug/replay/session.h"

namespace snug {

struct FitOptions {
  Bytes device = 0;                  ///< the budget: all of the device's memory that tensors may take. Required.
  std::string strategy = "optimal";  ///< as plan::strategy_from reads it
  c10::DeviceType device_type = c10::kCPU;
  /// The optimizer step, so that the floor and the predicted peak count its memory; see replay::Rehearsal.
  replay::Rehearsal update = {};
};

namespace replay {
/// record_step under a limit, which is lifted again. Throws DoesNotFit when not even eviction makes room for the step.
RecordedStep record_step_within(Bytes limit, const Forward& forward, memory::DeviceMemory& memory,
                                const Rehearsal& update = {});
Session fit(const Forward& forward, const FitOptions& options);
}  // namespace replay

/// Plans and caps the training step of any LibTorch model. Runs step(sample), which returns the loss, and its backward
/// pass twice to record it, without a trace: gradients, buffers and the random generator are as before. Then every
/// session.backward(step, batch) stays within the budget, with gradients bitwise those of the plain step.
/// Throws DoesNotFit, which names the smallest budget and its parts, and UsageError for a budget that is not positive.
template <class Step, class Batch>
Session fit(Step&& step, const Batch& sample, const FitOptions& options) {
  return replay::fit([&]() -> at::Tensor { return std::invoke(step, sample); }, options);
}

}  // namespace snug
