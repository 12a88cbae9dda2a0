#include "snug/replay/step_run.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>

#include <unordered_set>
#include <utility>

#include "snug/base/match.h"
#include "snug/base/patient_lock.h"
#include "snug/memory/swallowed_refusal.h"
#include "snug/record/tape.h"
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

/// While it lives, this thread runs the step.
class StepRun::OnThisThread {
 public:
  explicit OnThisThread(StepRun& run) : run_(run), outer_(std::exchange(t_run, &run)) {}
  ~OnThisThread() {
    run_.leave();
    t_run = outer_;
  }
  OnThisThread(const OnThisThread&) = delete;
  OnThisThread& operator=(const OnThisThread&) = delete;

 private:
  StepRun& run_;
  StepRun* outer_;
};

bool StepRun::went_backward() const noexcept {
  return std::visit(Match{[](const Idle&) { return false; }, [](const InForward&) { return false; },
                          [](const InBackward&) { return false; }, [](const auto&) { return true; }},
                    state_);
}

void StepRun::leave() noexcept {
  (void)memory::take_swallowed_refusal();  // behind which another exception came through
  writes_.reset();
  if (std::holds_alternative<InForward>(state_)) state_.emplace<Idle>();
  if (std::holds_alternative<InBackward>(state_)) forget_backward();
}

void StepRun::forget_backward() noexcept {
  state_.emplace<Idle>();
  // The engine is asked for a pass of its own, which is no step's.
  StepRun* const here = std::exchange(t_run, nullptr);
  std::vector<c10::Device> devices;
  {
    const PatientLock lock(tape_->mutex());
    devices = tape_->streams().devices();
  }
  release_abandoned_tasks(std::move(devices));
  t_run = here;
}

void StepRun::rethrow_refusal() const {
  const auto* const refused = std::get_if<Refused>(&state_);
  const auto* const stopped = std::get_if<Stopped>(&state_);
  if (refused != nullptr) std::rethrow_exception(refused->why);
  if (stopped != nullptr && stopped->refused) std::rethrow_exception(stopped->refused);
}

at::Tensor StepRun::operator()(const Forward& step) {
  const at::AutoGradMode as_before(at::GradMode::is_enabled());  // a function that is left may have changed it
  const OnThisThread here(*this);
  memory::forget_refusal();
  state_.emplace<InForward>(tape_);
  at::Tensor loss;
  try {
    loss = step();
  } catch (const UpdateBegins&) {
    if (!went_backward()) throw;  // another step's
  } catch (...) {
    if (!std::holds_alternative<Stopped>(state_)) throw;  // a function that is stopped may make another error of it
  }
  rethrow_refusal();
  if (std::holds_alternative<InForward>(state_)) {
    phases_.backward_over = nullptr;  // of a function that is over
    check_loss(loss);
    loss.backward();  // comes back by way of the engine
  }
  return loss.defined() ? loss.detach() : loss;
}

void StepRun::backward_begins(const Roots& roots) {
  if (std::holds_alternative<Stopped>(state_)) stop();
  if (!std::holds_alternative<InForward>(state_)) {
    if (std::holds_alternative<InBackward>(state_)) forget_backward();  // it failed, and the function went on
    const auto why = std::make_exception_ptr(UsageError(
        "step: it goes backward a second time; a step has one backward pass: add the losses up, make two steps of "
        "it, or, to accumulate gradients, call session.backward for each micro-batch and update after the last"));
    state_ = Refused{why};
    std::rethrow_exception(why);
  }
  auto& backward = state_.emplace<InBackward>();
  phases_.forward_over(roots);
  backward.tag.emplace(memory::Tag::Workspace);
}

void StepRun::backward_ends() {
  if (auto refused = memory::take_swallowed_refusal()) throw OutOfBudget(*std::move(refused));
  state_.emplace<Past>();
  {
    const PatientLock lock(tape_->mutex());
    tape_->observers().tell(&record::TapeObserver::backward_ends);
  }
  if (phases_.backward_over) phases_.backward_over(*this);
}

void StepRun::update_begins() {
  if (std::holds_alternative<Stopped>(state_)) stop();
  if (!went_backward() || !phases_.update_begins) return;
  // What it runs, an update that is rehearsed, is not the step's own.
  auto begins = std::exchange(phases_.update_begins, nullptr);
  const auto again = c10::make_scope_exit([&] { phases_.update_begins = std::move(begins); });
  begins(*this);
}

void StepRun::update_begins_at_writes_of(const std::vector<at::Tensor>& tensors) {
  writes_.emplace(before_writes_of(tensors, [this] { update_begins(); }));
}

void StepRun::stop() {
  if (!std::holds_alternative<Stopped>(state_)) {
    const auto* const refused = std::get_if<Refused>(&state_);
    state_ = Stopped{refused != nullptr ? refused->why : nullptr};
  }
  throw UpdateBegins();
}

}  // namespace snug::replay
