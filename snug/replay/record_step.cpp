#include "snug/replay/record_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/awaited_frees.h"
#include "snug/memory/tag.h"
#include "snug/record/profiler.h"
#include "snug/record/recording.h"
#include "snug/replay/gradient_hooks.h"
#include "snug/replay/gradients_aside.h"
#include "snug/replay/leaves_with_gradients.h"
#include "snug/replay/other_devices.h"
#include "snug/replay/record_evicting.h"
#include "snug/replay/saved_tensor_hooks.h"
#include "snug/replay/step_run.h"
#include "snug/replay/stop_asked.h"
#include "snug/replay/streamed_tensors.h"
#include "snug/replay/undone_draws.h"
#include "snug/replay/undone_writes.h"
#include "snug/replay/uses_measured.h"

namespace snug::replay {
namespace {

/// The first, and the others that have budgets.
std::vector<memory::DeviceMemory*> devices_of(memory::DeviceMemory& first, const RecordOptions& options) {
  std::vector<memory::DeviceMemory*> devices{&first};
  for (const DeviceBudget& other : options.other_budgets) devices.push_back(&memory::device_memory(other.device));
  return devices;
}

std::vector<Bytes> allocated_on(const std::vector<memory::DeviceMemory*>& devices) {
  std::vector<Bytes> all;
  for (const memory::DeviceMemory* device : devices) all.push_back(device->stats().allocated);
  return all;
}

/// What has come since.
std::vector<Bytes> more_than(const std::vector<Bytes>& before, const std::vector<memory::DeviceMemory*>& devices) {
  std::vector<Bytes> more = allocated_on(devices);
  for (std::size_t i = 0; i < more.size(); ++i) more[i] -= before[i];
  return more;
}

std::shared_ptr<record::Profiler> profiler_of(const std::vector<memory::DeviceMemory*>& devices,
                                              const std::vector<Bytes>& aside, plan::Codec lossy) {
  std::vector<record::MemoryGauge> gauges;
  for (std::size_t i = 0; i < devices.size(); ++i) gauges.emplace_back(*devices[i], aside[i]);
  return std::make_shared<record::Profiler>(std::move(gauges), lossy);
}

/// The update as it is rehearsed, once in a recording: where a step function is about to run its own, or at the end.
class RehearsedUpdate {
 public:
  /// `parameters`: those that have gradients when it runs.
  RehearsedUpdate(const Rehearsal& rehearsal, record::Profiler& profiler, const record::Tape& tape,
                  UndoneWrites& writes, const std::vector<at::Tensor>& parameters, UsesMeasured& uses)
      : rehearsal_(rehearsal),
        profiler_(profiler),
        tape_(tape),
        writes_(writes),
        parameters_(parameters),
        uses_(uses) {}
  ~RehearsedUpdate() {
    try {
      forget();
    } catch (...) {  // on the way of another error, which is reported
    }
  }
  RehearsedUpdate(const RehearsedUpdate&) = delete;
  RehearsedUpdate& operator=(const RehearsedUpdate&) = delete;

  void run() {
    if (!rehearsal_ || std::exchange(begun_, true)) return;
    check_updates_any(rehearsal_, parameters_);
    // Perhaps on the way into an operator, where no other one would be seen.
    const auto keys = c10::impl::tls_local_dispatch_key_set();
    const c10::impl::ForceDispatchKeyGuard seen(keys.included_, keys.excluded_.remove(record::kRecordingKey));
    made_ = true;
    // The second run has them again where the first has let go of them.
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : parameters_) gradients.push_back(p.grad());
    std::optional<UndoneWrites::Pause> trusted;
    if (rehearsal_.writes == Rehearsal::Writes::Nothing) trusted.emplace(writes_);
    const UsesMeasured::Count before = uses_.count();
    profiler_.rehearse(tape_, [&] {
      uses_.forget_after(before);  // those of the first run
      for (std::size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = gradients[i];
      return rehearsal_.run();
    });
    trusted.reset();
    writes_.undo();  // before the step function is left
  }

  /// Before the step runs. Returns the bytes of state that this has made, by device.
  std::vector<Bytes> prepare(const std::vector<memory::DeviceMemory*>& devices) {
    const std::vector<Bytes> before = allocated_on(devices);
    if (rehearsal_.prepare) {
      made_ = true;
      const memory::TagScope tag(memory::Tag::Optimizer);
      rehearsal_.prepare();
      writes_.undo();
    }
    return more_than(before, devices);
  }

  /// The state that it has made goes.
  void forget() {
    if (std::exchange(made_, false) && rehearsal_.forget) rehearsal_.forget();
  }

 private:
  const Rehearsal& rehearsal_;
  record::Profiler& profiler_;
  const record::Tape& tape_;
  UndoneWrites& writes_;
  const std::vector<at::Tensor>& parameters_;
  UsesMeasured& uses_;
  bool begun_ = false;
  bool made_ = false;
};

/// Weights that are gathered again for their backward pass, as those of fully_shard (FSDP2), are known to the tape.
/// Others may be there, or not, when a replay asks for them.
void refuse_freed_weights(const record::Tape& tape) {
  const auto freed = tape.resized_leaf();
  if (!freed) return;
  throw UsageError(fmt::format(
      "step: {} has been freed since an operator read it, as FullyShardedDataParallel (FSDP1) does, and a plan could "
      "not make it again; use fully_shard (FSDP2), or DistributedDataParallel",
      tape.lookup().name_of(*freed)));
}

/// Whether the step has made the tensor.
bool is_made_by(const record::Tape& tape, const at::Tensor& tensor) {
  return record::is_plain(tensor) && tape.values().made(tensor.storage().unsafeGetStorageImpl());
}

/// So that what is said of the step's parts has them as such.
void tag_weights(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& p : parameters) {
    if (p.has_storage()) memory::retag(p.storage(), memory::Tag::Weights);
  }
}

/// What records one run of a step, and what puts everything back at its end as it was before.
struct RecordingScope {
  /// The gradients of all are put aside; those that have gradients have others then, of zeros.
  RecordingScope(EvictionCost cost, memory::DeviceMemory& memory, const RecordOptions& options)
      : devices(devices_of(memory, options)),
        before(allocated_on(devices)),
        aside(options.update.parameters),
        profiler(profiler_of(devices, more_than(before, devices), options.lossy)),
        evictor(tape, memory, cost),
        others(options.other_budgets, tape, cost),
        awaited(memory) {
    const std::vector<at::Tensor>& with = options.have_gradients;
    if (options.stop) tape->add_observer(std::make_shared<StopAsked>(options.stop));
    tag_weights(options.update.parameters);
    aside.put(options.leaves);
    aside.put(with);

    const std::vector<Bytes> without = allocated_on(devices);
    const memory::TagScope tag(memory::Tag::Gradients);
    for (const at::Tensor& p : with) {
      const c10::impl::ExcludeDispatchKeyGuard no_state_of_an_optimizer(record::kRecordingKey);
      p.mutable_grad() = at::zeros_like(p);
      if (options.streamed) options.streamed->take_gradient(p);
    }
    gradients = more_than(without, devices);
  }
  ~RecordingScope() { tape->detach(); }
  RecordingScope(const RecordingScope&) = delete;
  RecordingScope& operator=(const RecordingScope&) = delete;

  void finish_forward() {
    refuse_freed_weights(*tape);
    tape->finish();
  }

  /// Of these parameters, as soon as their gradients are there.
  void update_each(const Rehearsal& rehearsal, const std::vector<at::Tensor>& parameters) {
    in_backward.emplace(parameters, [this, &rehearsal](const at::Tensor& parameter) {
      std::optional<UndoneWrites::Pause> trusted;
      if (rehearsal.writes == Rehearsal::Writes::Nothing) trusted.emplace(writes);
      rehearsal.each(parameter);
    });
  }

  std::vector<memory::DeviceMemory*> devices;
  std::vector<Bytes> before;  // allocated before what this takes itself
  UndoneDraws draws;
  GradientsAside aside;
  std::shared_ptr<record::Profiler> profiler;
  UndoneWrites writes{&profiler->clock()};
  std::shared_ptr<record::Tape> tape = std::make_shared<record::Tape>(record::KeepSaved{}, profiler);
  Evictor evictor;
  OtherDevices others;
  memory::AwaitedFrees awaited;
  std::optional<GradientHooks> in_backward;
  std::vector<Bytes> gradients;  // that are there from the first, by device
};

/// The others of the group have come as far as this process has, or nobody goes on.
void agree(const RecordOptions& options) {
  if (ask(*options.agreement, Vote::Yes) == Vote::No) throw RefusedElsewhere();
}

struct Recorded {
  RecordedStep step;
  std::vector<c10::Storage> leaves;  ///< that it read
};

/// The window that it is recorded with is no part of it.
void leave_window_out(plan::StepGraph& graph, const memory::DeviceMemory& memory, const RecordOptions& options) {
  const auto window = options.streamed ? options.streamed->window() : nullptr;
  if (!window || window->device() != memory.device()) return;
  const Bytes taken = memory.rounded(WindowSlab::memory_for(window->window().bytes));
  graph.add_static(0, static_cast<std::size_t>(memory::Tag::Weights), -taken);
}

Recorded record_once(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory,
                     const RecordOptions& options) {
  RecordingScope scope(cost, memory, options);
  Recorded recorded;
  RecordedStep& step = recorded.step;
  if (!options.have_gradients.empty()) step.kind = options.update.each ? StepKind::Last : StepKind::Later;
  UsesMeasured uses(options.streamed, scope.profiler->clock());
  RehearsedUpdate update(options.update, *scope.profiler, *scope.tape, scope.writes, step.parameters, uses);
  const std::vector<Bytes> prepared = update.prepare(scope.devices);
  const auto run_update = [&] {
    if (step.with_gradients.empty()) {
      std::vector<at::Tensor> others = options.update.parameters;
      others.insert(others.end(), options.leaves.begin(), options.leaves.end());
      step.with_gradients = with_gradients(step.parameters, others);
    }

    update.run();
  };
  const auto update_begins = [&](StepRun& run) {
    run_update();
    run.stop();
  };
  std::exception_ptr ended;  // by the group
  StepRun run(scope.tape, {.forward_over =
                               [&](const StepRun::Roots& roots) {
                                 scope.finish_forward();
                                 try {
                                   agree(options);
                                 } catch (...) {
                                   ended = std::current_exception();
                                   throw;
                                 }
                                 recorded.leaves = scope.tape->values().leaf_storages();
                                 step.parameters = leaves_of(roots, scope.profiler->leaves());
                                 std::erase_if(step.parameters,
                                               [&](const at::Tensor& leaf) { return is_made_by(*scope.tape, leaf); });
                                 add_missing(options.have_gradients, step.parameters);
                                 scope.aside.put(step.parameters);
                                 if (options.update.each) {
                                   scope.update_each(options.update, step.parameters);
                                 } else if (options.streamed) {
                                   scope.in_backward.emplace(
                                       step.parameters,
                                       [&](const at::Tensor& parameter) { options.streamed->take_gradient(parameter); },
                                       GradientHooks::For::Else);
                                 }
                               },
                           .backward_over =
                               [&](StepRun& it) {
                                 if (options.until == RecordUntil::Backward) update_begins(it);
                                 it.update_begins_at_writes_of(step.parameters);
                               },
                           .update_begins = update_begins});
  try {
    run(forward);
  } catch (...) {
    if (ended) std::rethrow_exception(ended);
    throw;
  }
  if (ended) std::rethrow_exception(ended);  // which the function caught
  if (!run.went_backward()) {
    throw UsageError(
        "step: its backward pass failed and the function went on; while it is recorded that has to succeed: try a "
        "smaller sample, or let the exception pass, which says why");
  }
  run_update();
  step.passing.clear();
  for (std::size_t i = 0; i < scope.devices.size(); ++i) {
    step.passing.push_back(
        {.state_to_come = prepared[i] + scope.profiler->state_to_come()[i], .gradients = scope.gradients[i]});
  }
  step.graph = scope.profiler->finish(*scope.tape);
  step.streamed = uses.finish(step.kind, step.graph.step_seconds + step.graph.update_seconds);
  leave_window_out(step.graph, memory, options);
  update.forget();
  scope.writes.undo();
  agree(options);
  return recorded;
}

RecordedStep record_forward(EvictionCost cost, const Forward& forward, memory::DeviceMemory& memory,
                            const RecordOptions& options) {
  RecordingScope scope(cost, memory, {.other_budgets = options.other_budgets, .stop = options.stop});
  if (options.streamed) options.streamed->next_step(StepKind::Evaluation);
  {
    const at::NoGradGuard no_grad;
    const record::Recording recording(scope.tape);
    const memory::TagScope tag(memory::Tag::Activations);
    (void)forward();
  }
  scope.finish_forward();
  if (options.streamed) options.streamed->next_step(StepKind::Evaluation);  // which is over
  RecordedStep step;
  step.kind = StepKind::Evaluation;
  step.passing.resize(scope.devices.size());
  step.graph = scope.profiler->finish(*scope.tape);
  leave_window_out(step.graph, memory, options);
  scope.writes.undo();
  agree(options);
  return step;
}

constexpr std::size_t kMostRuns = 4;

/// One of the same operators, or nullptr.
const plan::StepGraph* like(const plan::StepGraph& graph, const std::vector<plan::StepGraph>& others) {
  const auto found = std::ranges::find(others, graph.fingerprint(), &plan::StepGraph::fingerprint);
  return found == others.end() ? nullptr : &*found;
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
    throw UsageError("step: the loss does not require a gradient; no parameter took part, or gradient mode is off");
  }
}

RecordedStep record_step(const Forward& forward, memory::DeviceMemory& memory, const RecordOptions& options) {
  return or_tell(*options.agreement,
                 [&] { return record_step_evicting(EvictionCost::Timeless, forward, memory, options); });
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
  Recorded once = record_once(cost, forward, memory, options);
  std::vector<plan::StepGraph> before;
  before.push_back(std::move(once.step.graph));

  // What is older than the allocator counts from here on.
  for (const c10::Storage& leaf : once.leaves) memory::adopt(leaf);
  tag_weights(once.step.parameters);
  once = {};
  if (options.streamed) options.streamed->try_out({.bytes = options.streamed->totals().most_at_once});
  RecordedStep step = record_once(cost, forward, memory, options).step;
  // What is done once is in no step that comes, as where DistributedDataParallel makes its buckets anew.
  while (before.size() + 1 < kMostRuns &&
         ask(*options.agreement, like(step.graph, before) ? Vote::Yes : Vote::No) == Vote::No) {
    before.push_back(std::move(step.graph));
    step = {};
    step = record_once(cost, forward, memory, options).step;
  }
  if (const plan::StepGraph* other = like(step.graph, before)) step.graph.take_shorter_times(*other);
  return step;
}

}  // namespace snug::replay
