#include "snug/replay/step_run.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <string>
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

/// For each node of autograd's graph below these, as far as `visit` says to go on.
void walk(const StepRun::Roots& roots, const std::function<bool(const torch::autograd::Node& node)>& visit) {
  std::vector<torch::autograd::Node*> next;
  std::unordered_set<torch::autograd::Node*> seen;
  const auto add = [&](const torch::autograd::Edge& edge) {
    if (edge.function && seen.insert(edge.function.get()).second) next.push_back(edge.function.get());
  };
  std::ranges::for_each(roots, add);
  while (!next.empty()) {
    const torch::autograd::Node* const node = next.back();
    next.pop_back();
    if (visit(*node)) std::ranges::for_each(node->next_edges(), add);
  }
}

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

HasNoBackward::HasNoBackward(int grad_calls, at::Tensor returned)
    : UsageError(
          "step: the loss that it returned does not require a gradient, and it has called autograd.grad() but not "
          "backward(); call backward() on the loss, or return it attached to its graph"),
      grad_calls_(grad_calls),
      returned_(std::move(returned)) {}

StepRun::StepRun(Phases phases, StepBackward backward)
    : phases_(std::move(phases)), task_(torch::autograd::get_current_graph_task_id()), backward_(backward) {}

StepRun* StepRun::here() {
  return t_run != nullptr && t_run->task_ == torch::autograd::get_current_graph_task_id() ? t_run : nullptr;
}

/// While it lives, this thread runs the step.
class StepRun::OnThisThread {
 public:
  explicit OnThisThread(StepRun& run)
      : run_(run), outer_(std::exchange(t_run, &run)), outer_listener_(MicroBatchListener::exchange(&run)) {}
  ~OnThisThread() {
    run_.leave();
    t_run = outer_;
    MicroBatchListener::exchange(outer_listener_);
  }
  OnThisThread(const OnThisThread&) = delete;
  OnThisThread& operator=(const OnThisThread&) = delete;

 private:
  StepRun& run_;
  StepRun* outer_;
  MicroBatchListener* outer_listener_;
};

bool StepRun::went_backward() const noexcept {
  return std::visit(Match{[&](const Idle&) { return micro_batches_ && any_went_; },
                          [&](const InForward&) { return !micro_batches_ && any_went_; },
                          [](const InBackward&) { return false; }, [](const auto&) { return true; }},
                    state_);
}

void StepRun::leave() noexcept {
  (void)memory::take_swallowed_refusal();  // behind which another exception came through
  writes_.reset();
  further_pass_.reset();
  if (std::holds_alternative<InForward>(state_)) state_.emplace<Idle>();
  if (std::holds_alternative<InBackward>(state_)) forget_backward();
}

void StepRun::forget_backward() noexcept {
  const Pass failed = std::move(std::get<InBackward>(state_).pass);
  state_.emplace<Idle>();
  if (phases_.failed) phases_.failed(*failed.tape);
  // The engine is asked for a pass of its own, which is no step's.
  StepRun* const here = std::exchange(t_run, nullptr);
  std::vector<c10::Device> devices;
  {
    const PatientLock lock(failed.tape->mutex());
    devices = failed.tape->streams().devices();
  }
  release_abandoned_tasks(std::move(devices));
  t_run = here;
}

void StepRun::rethrow() {
  if (refused_) std::rethrow_exception(refused_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void StepRun::refuse(const UsageError& why) {
  if (!refused_) refused_ = std::make_exception_ptr(why);
  throw UsageError(why);
}

bool StepRun::is_of_micro_batch(const at::Tensor& loss) const {
  bool has_gone = false;
  const Pass* const pass = maker_of({torch::autograd::impl::gradient_edge(loss)}, has_gone);
  return pass != nullptr && pass->is_micro_batch;
}

at::Tensor StepRun::operator()(const Forward& step) {
  const at::AutoGradMode as_before(at::GradMode::is_enabled());  // a function that is left may have changed it
  const OnThisThread here(*this);
  memory::forget_refusal();
  begin_forward();
  at::Tensor loss;
  try {
    loss = step();
  } catch (const UpdateBegins&) {
    if (!went_backward()) throw;  // another step's
  } catch (...) {
    if (!std::holds_alternative<Stopped>(state_)) throw;  // a function that is stopped may make another error of it
  }
  rethrow();
  if (any_went_ && !micro_batches_ && std::holds_alternative<InForward>(state_)) end_forward();
  // A loss of a micro-batch, or of a further pass, too, where the function has not gone backward from it.
  bool has_gone = false;
  const bool returned = (micro_batches_ || any_went_) && !std::holds_alternative<Stopped>(state_) && loss.defined() &&
                        loss.requires_grad() &&
                        maker_of({torch::autograd::impl::gradient_edge(loss)}, has_gone) != nullptr;
  if (std::holds_alternative<InForward>(state_) || returned || (micro_batches_ && !any_went_)) {
    function_is_over_ = true;
    const bool has_graph = loss.defined() && loss.requires_grad();
    if (!std::holds_alternative<ReturnsLoss>(backward_) && !has_graph) {  // it has skipped its batch
      if (std::holds_alternative<InForward>(state_)) end_forward();
      return loss;
    }
    if (!micro_batches_ && grad_calls_ > 0 && !has_graph) throw HasNoBackward(grad_calls_, loss);
    check_loss(loss);
    go_backward(loss);
  }
  return loss.defined() ? loss.detach() : loss;
}

// Recording does not begin here, within an operator: what its kernel calls would be recorded in its place. A later
// operator is told by its node, which autograd makes before the operator reaches the gate.
void StepRun::note_unrecorded_save() {
  if (next_node_ || !may_begin_further_pass()) return;
  next_node_ = at::sequence_number::peek();
  if (further_pass_) return;
  further_pass_.emplace(
      record::OperatorGate::Calls{.before = [this](const c10::OperatorHandle&, const torch::jit::Stack&) {
        const bool is_awaited = next_node_ && may_begin_further_pass();
        if (is_awaited && at::sequence_number::peek() > *next_node_ && here() == this) begin_forward();
      }});
}

bool StepRun::may_begin_further_pass() const noexcept {
  return std::holds_alternative<Past>(state_) && phases_.allows_further_passes && !micro_batches_ && !function_is_over_;
}

void StepRun::region_begins() {
  if (may_begin_further_pass()) begin_forward();
}

void StepRun::go_backward(const at::Tensor& loss) {
  try {
    loss.backward();  // comes back by way of the engine
  } catch (const c10::Error& error) {
    if (error.msg().find("backward through the graph a second time") == std::string::npos) throw;
    refuse(UsageError(
        "step: the graph of the loss that it returned has been freed: return loss.detach() from a step that goes "
        "backward itself, as by autograd.grad(); where another thread went backward, call backward() in the thread "
        "that runs the step, or leave it to the session"));
  }
}

bool StepRun::is_backward(const Roots& roots, Gradients gradients) {
  if (gradients == Gradients::Accumulated) return true;
  const auto* const by_grad = std::get_if<CallsGrad>(&backward_);
  if (++grad_calls_ == (by_grad != nullptr ? by_grad->which : 0)) return true;
  if (phases_.grad_begins) phases_.grad_begins(roots);
  return false;
}

void StepRun::begin_forward(int stage) {
  // Before the tape: what makes it may throw.
  std::shared_ptr<record::Tape> tape = phases_.forward_begins(stage);
  state_.emplace<InForward>(
      Pass{.tape = std::move(tape), .first_node = at::sequence_number::peek(), .is_micro_batch = micro_batches_});
}

bool StepRun::Pass::made(const torch::autograd::Node& node) const {
  return first_node <= node.sequence_nr() && node.sequence_nr() < end_node &&
         node.thread_id() == at::RecordFunction::currentThreadId();
}

void StepRun::end_forward() {
  Pass pass = std::get<InForward>(state_).pass;
  state_.emplace<Idle>();  // nothing is recorded from here on
  pass.end_node = at::sequence_number::peek();
  phases_.forward_over(*pass.tape);
  forward_over_.push_back(std::move(pass));
}

void StepRun::micro_batch_begins(int stage) {
  if (std::holds_alternative<Stopped>(state_)) stop();
  rethrow();
  if (torch::autograd::get_current_graph_task_id() != task_)
    throw UsageError("step: a micro-batch begins inside of a backward pass; begin it in front of its forward pass");
  if (std::holds_alternative<InBackward>(state_)) forget_backward();  // it failed, and the function went on
  micro_batches_ = true;
  if (std::holds_alternative<InForward>(state_)) end_forward();
  try {
    begin_forward(stage);
  } catch (const UsageError& error) {
    refuse(error);
  }
}

void StepRun::micro_batch_ends() noexcept {
  const auto* const forward = std::get_if<InForward>(&state_);
  if (forward == nullptr || !forward->pass.is_micro_batch) return;
  if (torch::autograd::get_current_graph_task_id() != task_) return;
  try {
    end_forward();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void StepRun::micro_batch_fails() noexcept {
  const auto* const forward = std::get_if<InForward>(&state_);
  if (forward == nullptr || !forward->pass.is_micro_batch) return;
  const Pass failed = forward->pass;
  state_.emplace<Idle>();
  if (phases_.failed) phases_.failed(*failed.tape);
}

const StepRun::Pass* StepRun::maker_of(const Roots& roots, bool& has_gone) const {
  const Pass* found = nullptr;
  walk(roots, [&](const torch::autograd::Node& node) {
    const auto made_it = [&](const Pass& pass) { return pass.made(node); };
    if (found != nullptr) return false;
    const auto maker = std::ranges::find_if(forward_over_, made_it);
    if (maker != forward_over_.end()) found = &*maker;
    const bool gone = std::ranges::any_of(went_, made_it);
    has_gone = has_gone || gone;
    return !gone;
  });
  return found;
}

std::vector<StepRun::Pass>::iterator StepRun::made(const Roots& roots) {
  bool has_gone = false;
  if (const Pass* const maker = maker_of(roots, has_gone))
    return forward_over_.begin() + (maker - forward_over_.data());
  return has_gone || forward_over_.size() != 1 ? forward_over_.end() : forward_over_.begin();
}

void StepRun::reach_others(const Roots& roots) {
  if (!micro_batches_) return;
  walk(roots, [&](const torch::autograd::Node& node) {
    const auto found = std::ranges::find_if(forward_over_, [&](const Pass& pass) { return pass.made(node); });
    if (found == forward_over_.end() || !found->is_micro_batch) return true;
    const Pass other = std::move(*found);
    forward_over_.erase(found);
    went_.push_back({.tape = nullptr, .first_node = other.first_node, .end_node = other.end_node});
    if (phases_.reached) phases_.reached(*other.tape);
    return true;
  });
}

void StepRun::backward_begins(const Roots& roots) {
  if (std::holds_alternative<Stopped>(state_)) stop();
  if (std::holds_alternative<InBackward>(state_)) forget_backward();  // it failed, and the function went on
  rethrow();
  if (std::holds_alternative<InForward>(state_)) end_forward();
  const auto found = made(roots);
  if (found == forward_over_.end()) {
    const std::string begin =
        "step: it goes backward a second time; a step has one backward pass: add the losses up, make two steps of it, "
        "call session.backward for each micro-batch and update after the last, or say where each forward pass is "
        "(MicroBatch; in Python: with snug.micro_batch())";
    refuse(UsageError(phases_.allows_further_passes
                          ? begin
                          : begin + "; or leave out the sample: a session that records the first real step takes "
                                    "several passes, one after the other"));
  }
  auto& backward = state_.emplace<InBackward>();
  backward.pass = std::move(*found);
  forward_over_.erase(found);
  went_.push_back({.tape = nullptr, .first_node = backward.pass.first_node, .end_node = backward.pass.end_node});
  if (phases_.backward_begins) phases_.backward_begins(*backward.pass.tape, roots);
  reach_others(roots);
  backward.tag.emplace(memory::Tag::Workspace);
}

void StepRun::backward_ends() {
  if (auto refused = memory::take_swallowed_refusal()) throw OutOfBudget(*std::move(refused));
  const Pass pass = std::move(std::get<InBackward>(state_).pass);
  state_.emplace<Past>();
  any_went_ = true;
  {
    const PatientLock lock(pass.tape->mutex());
    pass.tape->observers().tell(&record::TapeObserver::backward_ends);
  }
  if (phases_.backward_over) phases_.backward_over(*this, *pass.tape);
  next_node_.reset();
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
  leaves_.note(tensors);
  if (writes_) return;
  writes_.emplace(record::OperatorGate::Calls{.before_write = [this](const at::Tensor& written) {
    if (micro_batches_ ? leaves_.hold_with_gradient(written) : leaves_.hold(written)) update_begins();
  }});
}

void StepRun::stop() {
  state_.emplace<Stopped>();
  throw UpdateBegins();
}

}  // namespace snug::replay
