#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/plan/run/window_cost.h"
#include "snug/plan/step/step_graph.h"
#include "snug/replay/agreement.h"
#include "snug/replay/device_budget.h"
#include "snug/replay/outside_memory.h"
#include "snug/replay/rehearsal.h"
#include "snug/replay/step_backward.h"
#include "snug/replay/step_kind.h"

namespace snug {
class StreamedTensors;
}

namespace snug::replay {

/// A step function: runs the forward pass and returns the loss, a defined tensor of one element that requires a
/// gradient. Or calls backward() on it where it stands, and goes on to update; then what it returns may be undefined.
using Forward = std::function<at::Tensor()>;

struct RecordedStep {
  plan::StepGraph graph;
  std::vector<at::Tensor> parameters;  ///< the leaves that the step may give gradients to, and those that had some
  /// Those of them, and of what the update is known to be of, that have gradients when its backward pass is over,
  /// before an update.
  std::vector<at::Tensor> with_gradients;
  /// By device, of the static bytes of the graph and then of its parts. What is beside the steps is for who records to
  /// say.
  std::vector<PassingBytes> passing{1};
  StepKind kind = StepKind::First;
  std::vector<plan::StepGraph> further{};  ///< of the kind MicroBatch: those of other operators, as of other stages
  StepBackward backward{};
  plan::StreamedStep streamed{};  ///< how it uses what is streamed; whose window the graph does not count
};

/// How far a step is recorded, and so a step function that goes backward itself runs, that it leaves no trace.
enum class RecordUntil : std::uint8_t {
  Loss,          ///< without gradients, once, and nothing is rehearsed: a step of the kind Evaluation
  Backward,      ///< UpdateBegins is thrown where the function's backward() returns; one with micro-batches runs to its
                 ///< end, and may not update
  UpdateBegins,  ///< somebody stops it where its update begins (see StepRun), or it is stopped where it first writes
                 ///< a parameter
};

struct RecordOptions {
  Rehearsal update = {};
  RecordUntil until = RecordUntil::Backward;
  std::shared_ptr<Agreement> agreement = alone();  ///< with those that record the same step at the same time

  /// Leaves beside those of the update that the step may give gradients to in ways of its own, as FSDP2 does to shards:
  /// these gradients are put aside before it runs.
  std::vector<at::Tensor> leaves = {};
  /// Leaves that have gradients before the step, which are zeros while it is recorded: a step of the kind Later, where
  /// there are any, and of the kind Last where `update` is of each as its gradient arrives. What `with_gradients`
  /// of an earlier recording says, if not fewer.
  std::vector<at::Tensor> have_gradients = {};
  /// Of further devices that the step uses: they are capped, and values there are evicted and replayed as needed.
  std::vector<DeviceBudget> other_budgets = {};
  /// Tensors of the device that the step uses and whose contents are not all there. How they are used is a part of
  /// what is recorded; their window, which holds what is used at once afterwards, is not: see open_best_window.
  std::shared_ptr<StreamedTensors> streamed = nullptr;
  /// A codec that plans may use beside those that give back the same bits: see FitOptions::lossy.
  plan::Codec lossy = plan::Codec::None;
  /// As far as it is known. record_step finds out.
  StepBackward backward{};
  /// Asked again and again while the step runs, by any of its threads, and runs no operators itself: where it says true
  /// the recording throws Stopped, and leaves no trace either.
  std::function<bool()> stop = {};
};

/// Runs forward and backward twice, records them, and takes every operator's shorter time; up to four times, in all
/// processes, where none of the runs before had the same operators in one of them. Leaves no trace: gradients,
/// what operators write (see UndoneWrites) and random generators (see UndoneDraws) are afterwards as before; hooks for
/// when a gradient has been accumulated, where optimizers are run, do not run. (A step function that frees gradients
/// before its backward pass has freed those of parameters that the rehearsal does not know.) Under a limit of `memory`
/// values are evicted and replayed as needed. Throws UsageError when `forward` returns no loss; GroupEnded where the
/// recording of another process of the group has failed, as all end with that of one.
RecordedStep record_step(const Forward& forward, memory::DeviceMemory& memory, const RecordOptions& options = {});

/// Throws UsageError unless `loss` can be differentiated: defined, one element, requires a gradient.
void check_loss(const at::Tensor& loss);

}  // namespace snug::replay
