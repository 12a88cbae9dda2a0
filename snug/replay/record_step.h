#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/plan/step_graph.h"

namespace snug::replay {

/// Runs the forward pass and returns the loss: a defined tensor of one element that requires a gradient.
using Forward = std::function<at::Tensor()>;

/// The optimizer step, for its memory and seconds. It runs after a recorded backward pass, with that pass's gradients,
/// and must change nothing but them: recording leaves no trace. Empty: the plan knows of no optimizer step.
using Rehearsal = std::function<void()>;

struct RecordedStep {
  plan::StepGraph graph;
  std::vector<at::Tensor> parameters;  ///< the leaves that the step may give gradients to
};

/// Runs forward and backward twice, records them, and takes every operator's shorter time. Leaves no trace: gradients,
/// buffers that recorded operators write and the default random generators are afterwards as before; hooks for when a
/// gradient has been accumulated, where optimizers are run, do not run. Under a limit of
/// `memory` values are evicted and replayed as needed. Throws UsageError when `forward` returns no loss.
RecordedStep record_step(const Forward& forward, memory::DeviceMemory& memory, const Rehearsal& update = {});

/// Throws UsageError unless `loss` can be differentiated: defined, one element, requires a gradient.
void check_loss(const at::Tensor& loss);

}  // namespace snug::replay
