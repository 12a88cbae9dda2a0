#include "snug/replay/step_run.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <unordered_set>
#include <utility>

#include "snug/record/operator_traits.h"
#include "snug/replay/abandoned_tasks.h"

namespace snug::replay {
namespace {

thread_local StepRun* t_run = nullptr;

}  // namespace

UpdateBegins::UpdateBegins()
    : Error(
          "step: its update was about to begin, which must not happen while it is recorded; let this exception pass") {}

record::OperatorGate::Calls before_writes_of(const std::vector<at::Tensor>& tensors, std::function<void()> stop) {
  std::unordered_set<const c10::StorageImpl*> storages;
  for (const at::Tensor& t : tensors) {
    if (t.has_storage()) storages.insert(t.storage().unsafeGetStorageImpl());
  }
  return {.before_write = [storages = std::move(storages), stop = std::move(stop)](const at::Tensor& written) {
    if (storages.contains(written.storage().unsafeGetStorageImpl())) stop();
  }};
}

StepRun::StepRun(std::shared_ptr<record::Tape> tape, Phases phases)
    : tape_(std::move(tape)), phases_(std::move(phases)), task_(torch::autograd::get_current_graph_task_id()) {}

StepRun* StepRun::here() {
  return t_run != nullptr && t_run->task_ == torch::autograd::get_current_graph_task_id() ? t_run : nullptr;
}

void StepRun::forget_backward() noexcept {
  if (at_ != At::InBackward) return;
  // The engine is asked for a pass of its own, which is no step's.
  StepRun* const outer = std::exchange(t_run, nullptr);
  release_abandoned_tasks();
  t_run = outer;
}

at::Tensor StepRun::operator()(const Forward& step) {
  StepRun* const outer = std::exchange(t_run, this);
  const at::AutoGradMode as_before(at::GradMode::is_enabled());  // a function that is left may have changed it
  recording_.emplace(tape_);
  tag_.emplace(memory::Tag::Activations);
  const auto leave = [&] {
    tag_.reset();
    recording_.reset();
    t_run = outer;
  };
  at::Tensor loss;
  try {
    try {
      loss = step();
    } catch (const UpdateBegins&) {
      if (at_ != At::Past) throw;  // another step's
    } catch (...) {
      if (!stopped_) throw;  // it comes of that
    }
    if (refused_) std::rethrow_exception(refused_);
    returned_ = true;
    if (at_ == At::InForward) {
      check_loss(loss);
      loss.backward();  // comes back by way of the engine
    }
  } catch (...) {
    leave();
    loss = at::Tensor();
    forget_backward();
    throw;
  }
  leave();
  forget_backward();  // it failed, and the function went on
  return loss.defined() ? loss.detach() : loss;
}

void StepRun::backward_begins(const Roots& roots) {
  if (stopped_) stop();
  if (at_ != At::InForward) {
    refused_ = std::make_exception_ptr(UsageError(
        "step: it goes backward a second time; a step has one backward pass: add the losses up, make two steps of "
        "it, or, to accumulate gradients, call session.backward for each micro-batch and update after the last"));
    std::rethrow_exception(refused_);
  }
  tag_.reset();
  recording_.reset();
  at_ = At::InBackward;
  phases_.forward_over(roots);
  tag_.emplace(memory::Tag::Workspace);
}

void StepRun::backward_ends() {
  tag_.reset();
  at_ = At::Past;
  if (!returned_ && phases_.backward_over) phases_.backward_over();
}

void StepRun::update_begins() {
  if (stopped_) stop();
  if (at_ == At::Past && phases_.update_begins) phases_.update_begins();
}

void StepRun::stop() {
  stopped_ = true;
  throw UpdateBegins();
}

}  // namespace snug::replay
