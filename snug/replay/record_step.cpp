#include "snug/replay/record_step.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/tag.h"
#include "snug/record/profiler.h"
#include "snug/record/recording.h"
#include "snug/replay/other_devices.h"
#include "snug/replay/record_evicting.h"
#include "snug/replay/recording_scope.h"
#include "snug/replay/saved_tensor_hooks.h"
#include "snug/replay/step_recording.h"
#include "snug/replay/step_run.h"
#include "snug/replay/streamed_tensors.h"

namespace snug::replay {
namespace {

/// The window that it is recorded with is no part of it.
void leave_window_out(plan::StepGraph& graph, const memory::DeviceMemory& memory, const RecordOptions& options) {
  const auto window = options.streamed ? options.streamed->window() : nullptr;
  if (!window || window->device() != memory.device()) return;
  const Bytes taken = memory.rounded(WindowSlab::memory_for(window->window().bytes));
  graph.add_static(0, static_cast<std::size_t>(memory::Tag::Weights), -taken);
}

Recorded record_once(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory,
                     const RecordOptions& options) {
  Recorded recorded = StepRecording(cost, memory, options).run(forward);
  leave_window_out(recorded.step.graph, memory, options);
  agree(options);
  return recorded;
}

RecordedStep record_forward(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory,
                            const RecordOptions& options) {
  const RecordOptions bare{.other_budgets = options.other_budgets, .stop = options.stop};
  RecordingScope scope(cost, memory, bare);
  RecordedPass& pass = scope.begin_pass(record::KeepNothing{});
  if (options.streamed) options.streamed->next_step(StepKind::Evaluation);
  {
    const at::NoGradGuard no_grad;
    const record::Recording recording(pass.tape);
    const memory::TagScope tag(memory::Tag::Activations);
    (void)forward();
  }
  RecordingScope::finish_forward(pass);
  if (options.streamed) options.streamed->next_step(StepKind::Evaluation);  // which is over
  RecordedStep step;
  step.kind = StepKind::Evaluation;
  step.passing.resize(scope.devices().size());
  step.graph = pass.profiler->finish(*pass.tape);
  leave_window_out(step.graph, memory, options);
  scope.writes().undo();
  agree(options);
  return step;
}

/// Of a step that takes its gradients from autograd::grad(), its last call of that is the backward pass.
Recorded record_first(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory, RecordOptions& options) {
  try {
    return record_once(cost, forward, memory, options);
  } catch (const HasNoBackward& error) {
    options.backward = CallsGrad{.which = error.grad_calls()};
  }
  return record_once(cost, forward, memory, options);
}

/// Without a limit, that of the machine: of the CPU, where the system promises more than there is, and kills who fills
/// it. Less a part for what else runs there. To be made anew when older memory has been adopted, which counts from then
/// on.
class WithinMachine {
 public:
  explicit WithinMachine(memory::DeviceMemory& memory) {
    if (!memory.device().is_cpu() || memory.stats().limit) return;
    const Bytes available = memory.capacity().available;
    if (available > 0) held_.emplace(memory, memory.stats().allocated + available - available / 16);
  }

 private:
  std::optional<memory::HeldLimit> held_;
};

constexpr std::size_t kMostRuns = 4;

/// All graphs of a step.
std::vector<plan::StepGraph*> graphs_of(RecordedStep& step) {
  std::vector<plan::StepGraph*> all{&step.graph};
  for (plan::StepGraph& graph : step.further) all.push_back(&graph);
  return all;
}

/// Its graphs alone, which it has no more.
RecordedStep bare(RecordedStep& step) {
  RecordedStep graphs;
  graphs.graph = std::move(step.graph);
  graphs.further = std::move(step.further);
  return graphs;
}

/// Whether they have the same operators.
bool are_alike(RecordedStep& a, RecordedStep& b) {
  const auto fingerprints = [](RecordedStep& step) {
    std::multiset<std::uint64_t> all;
    for (const plan::StepGraph* const graph : graphs_of(step)) all.insert(graph->fingerprint());
    return all;
  };
  return fingerprints(a) == fingerprints(b);
}

/// One like it, or nullptr.
RecordedStep* like(RecordedStep& step, std::vector<RecordedStep>& others) {
  const auto found = std::ranges::find_if(others, [&](RecordedStep& other) { return are_alike(step, other); });
  return found == others.end() ? nullptr : &*found;
}

void take_shorter_times(RecordedStep& step, RecordedStep& other) {
  for (plan::StepGraph* const graph : graphs_of(step)) {
    for (const plan::StepGraph* const same : graphs_of(other)) {
      if (same->fingerprint() == graph->fingerprint()) graph->take_shorter_times(*same);
    }
  }
}

}  // namespace

RefusedElsewhere::RefusedElsewhere()
    : GroupEnded("step: its recording ends, as that of another process of the group has been refused") {}

void check_loss(const at::Tensor& loss) {
  if (!loss.defined()) throw UsageError("step: it returned an undefined tensor; return the loss");
  if (loss.numel() != 1) {
    throw UsageError(
        fmt::format("step: it returned a tensor of {} elements; return a loss of one element", loss.numel()));
  }
  if (!loss.requires_grad()) {
    throw UsageError(
        "step: the loss does not require a gradient; no parameter took part, gradient mode is off, or another thread "
        "went backward: call backward() in the thread that runs the step");
  }
}

RecordedStep record_step(const Forward& forward, memory::DeviceMemory& memory, const RecordOptions& options) {
  try {
    return record_step_evicting(EvictionCost::Timeless, forward, memory, options);
  } catch (...) {
    tell_failure_in_step(*options.agreement);
    throw;
  }
}

RecordedStep record_step_evicting(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory,
                                  const RecordOptions& as_given) {
  require_saved_tensor_hooks();
  RecordOptions options = as_given;
  options.other_budgets = with_indices(std::move(options.other_budgets));
  if (options.until == RecordUntil::Loss) return record_forward(cost, forward, memory, options);
  // The first run pays for page faults and the kernels' own set-up, and shows what is used at once.
  const WindowAfterFailure as_before(options.streamed.get());
  if (options.streamed) options.streamed->try_out({});
  std::optional<WithinMachine> within(memory);
  Recorded once = record_first(cost, forward, memory, options);
  std::vector<RecordedStep> before;
  before.push_back(bare(once.step));

  // What is older than the allocator counts from here on.
  within.reset();
  for (const auto& leaf : once.leaves) {
    if (auto storage = leaf.lock()) memory::adopt(c10::Storage(std::move(storage)));
  }
  tag_weights(once.step.parameters);
  within.emplace(memory);
  once = {};
  if (options.streamed) options.streamed->try_out({.bytes = options.streamed->totals().most_at_once});
  RecordedStep step = record_once(cost, forward, memory, options).step;
  // What is done once is in no step that comes, as where DistributedDataParallel makes its buckets anew.
  while (before.size() + 1 < kMostRuns &&
         ask(*options.agreement, like(step, before) ? Vote::Yes : Vote::No) == Vote::No) {
    before.push_back(bare(step));
    step = {};
    step = record_once(cost, forward, memory, options).step;
  }
  if (RecordedStep* const other = like(step, before)) take_shorter_times(step, *other);
  return step;
}

}  // namespace snug::replay
