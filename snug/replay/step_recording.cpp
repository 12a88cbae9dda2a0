#include "snug/replay/step_recording.h"

#include <ATen/ThreadLocalState.h>

#include <algorithm>
#include <utility>

#include "snug/base/errors.h"
#include "snug/record/denormals.h"
#include "snug/record/global_settings.h"
#include "snug/record/recording_key.h"
#include "snug/replay/leaves_with_gradients.h"
#include "snug/replay/record_evicting.h"
#include "snug/replay/streamed_tensors.h"

namespace snug::replay {
void agree(const RecordOptions& options) {
  if (ask(*options.agreement, Vote::Yes) == Vote::No) throw RefusedElsewhere();
}

StepRecording::StepRecording(EvictionCost cost, memory::DeviceMemory& memory, const RecordOptions& options)
    : options_(options),
      scope_(cost, memory, options),
      update_(options.update, scope_.writes()),
      micro_batches_(scope_) {
  if (!options.have_gradients.empty()) recorded_.step.kind = options.update.each ? StepKind::Last : StepKind::Later;
}

Recorded StepRecording::run(const Forward& forward) {
  // What the step sets in front of its update, and back behind it, is not put back by a step that is left there.
  const record::KeptSettings settings;
  const record::DenormalScope denormals;
  const at::ThreadLocalStateGuard of_thread{at::ThreadLocalState()};  // such as autocast
  RecordedStep& step = recorded_.step;
  whole_ = &scope_.begin_pass();
  UsesMeasured uses(options_.streamed, whole_->profiler->clock());
  uses_ = &uses;
  prepared_ = update_.prepare(scope_.devices());
  micro_batches_.sample({});  // what the step takes in front of the first of them comes with each step
  StepRun run(
      {.forward_begins = [this](int stage) { return forward_begins(stage); },
       .forward_over = [this](record::Tape& tape) { forward_over(tape); },
       .backward_begins = [this](record::Tape& tape, const StepRun::Roots& roots) { backward_begins(tape, roots); },
       .backward_over = [this](StepRun& it, record::Tape& tape) { backward_over(it, tape); },
       .reached = [this](record::Tape& tape) { reached(tape); },
       .failed = [this](record::Tape& tape) { failed(tape); },
       .update_begins = [this](StepRun& it) { update_begins(it); },
       .grad_begins = [this](const StepRun::Roots& roots) { note_gradients(roots); }},
      options_.backward);
  run_ = &run;
  try {
    run(forward);
  } catch (const HasNoBackward&) {
    for (const auto& [leaf, gradient] : gradients_before_)
      leaf.mutable_grad() = gradient;  // it may have put others there
    throw;
  } catch (...) {
    if (ended_by_group_) std::rethrow_exception(ended_by_group_);
    throw;
  }
  if (ended_by_group_) std::rethrow_exception(ended_by_group_);  // which the function caught
  if (refused_) std::rethrow_exception(refused_);
  if (!run.went_backward() || ended_ == nullptr || backward_failed_) {
    throw UsageError(
        "step: its backward pass failed and the function went on; while it is recorded that has to succeed: try a "
        "smaller sample, or let the exception pass, which says why");
  }
  run_update();
  step.parameters = parameters_.alive();
  step.passing.clear();
  for (std::size_t i = 0; i < scope_.devices().size(); ++i)
    step.passing.push_back({.state_to_come = prepared_[i] + state_to_come_[i], .gradients = scope_.gradients()[i]});
  note_ended();
  if (micro_batches_.empty()) {
    step.graph = *std::move(of_whole_);
  } else {
    micro_batches_.finish(step, state_to_come_);
  }
  step.streamed = uses.finish(step.kind, step.graph.step_seconds + step.graph.update_seconds);
  update_.forget();
  scope_.writes().undo();
  return std::move(recorded_);
}

void StepRecording::note_gradients(const StepRun::Roots& roots) {
  for (const at::Tensor& leaf : leaves_of(roots, {})) {
    if (noted_.insert(leaf.unsafeGetTensorImpl()).second) gradients_before_.emplace_back(leaf, leaf.grad());
  }
}

void StepRecording::refuse(const UsageError& why) {
  refused_ = std::make_exception_ptr(why);
  throw UsageError(why);
}

void StepRecording::update_begins(StepRun& run) {
  if (options_.until == RecordUntil::Backward && run.has_micro_batches()) {
    refuse(UsageError(
        "step: it updates behind its micro-batches, and nobody knows which was the last before the optimizer has "
        "begun; run the optimizer outside of the step, behind session.backward"));
  }
  run_update();
  run.stop();
}

std::shared_ptr<record::Tape> StepRecording::forward_begins(int stage) {
  if (!run_->has_micro_batches()) return whole_->tape;
  if (options_.streamed) {
    refuse(UsageError(
        "step: it has micro-batches of its own and streamed weights, which are expected in the order of one pass; "
        "leave one of them out"));
  }
  if (options_.update.each) {
    refuse(UsageError(
        "step: it has micro-batches of its own and updates in the backward pass, where gradients are not complete; "
        "leave one of them out"));
  }
  if (!options_.have_gradients.empty()) {
    refuse(
        UsageError("step: it has micro-batches of its own, whose gradients come while it runs; give it none before"));
  }
  note_ended();
  micro_batches_.sample(parameters_.alive());
  RecordedPass& pass = scope_.begin_micro_batch();
  pass.stage = stage;
  return pass.tape;
}

void StepRecording::forward_over(record::Tape& tape) {
  RecordedPass& pass = scope_.pass_of(tape);
  RecordingScope::finish_forward(pass);
  pass.profiler->wait(tape);
  if (pass.is_micro_batch) micro_batches_.went_forward(tape, pass.stage);
}

void StepRecording::backward_begins(record::Tape& tape, const StepRun::Roots& roots) {
  RecordedPass& pass = scope_.pass_of(tape);
  // Where passes run by turns the others may be waiting for what this one makes.
  if (!run_->has_micro_batches()) {
    try {
      agree(options_);
    } catch (...) {
      ended_by_group_ = std::current_exception();
      throw;
    }
  } else {
    note_ended();
    micro_batches_.sample(parameters_.alive());
  }
  for (const c10::Storage& leaf : tape.values().leaf_storages())
    recorded_.leaves.emplace_back(leaf.getWeakStorageImpl());
  std::vector<at::Tensor> parameters = parameters_of(tape, roots, pass.profiler->leaves());
  add_missing(options_.have_gradients, parameters);
  scope_.aside().put(parameters);
  parameters_.add(parameters);
  pass.profiler->go_on();
  scope_.use_clock_of(pass);
  if (run_->has_micro_batches()) {
    if (pass.is_micro_batch) micro_batches_.went_backward(tape);
  } else if (options_.update.each) {
    scope_.update_each(options_.update, parameters_.alive());
  } else if (options_.streamed) {
    scope_.take_gradients(parameters_.alive());
  }
}

void StepRecording::backward_over(StepRun& run, record::Tape& tape) {
  ended_ = &tape;
  scope_.pass_of(tape).profiler->wait(tape);
  for (record::Tape* const other : std::exchange(reached_, {})) {
    micro_batches_.forget(*other);
    scope_.end_pass(*other);
  }
  if (run.function_is_over()) {  // after micro-batches that the function went backward from, perhaps
    recorded_.step.backward = ReturnsLoss{};
    return;
  }
  recorded_.step.backward =
      std::holds_alternative<CallsGrad>(options_.backward) ? options_.backward : StepBackward(CallsBackward{});
  if (options_.until == RecordUntil::Backward && !run.has_micro_batches()) {
    run_update();
    run.stop();
  }
  run.update_begins_at_writes_of(parameters_.alive());
}

void StepRecording::reached(record::Tape& tape) {
  micro_batches_.went_backward(tape);
  reached_.push_back(&tape);
}

void StepRecording::failed(record::Tape& tape) {
  // A forward pass that fails is none, where the function goes on.
  if (tape.finished()) backward_failed_ = true;
}

void StepRecording::run_update() {
  RecordedStep& step = recorded_.step;
  const std::vector<at::Tensor> parameters = parameters_.alive();
  if (step.with_gradients.empty()) {
    std::vector<at::Tensor> others = options_.update.parameters;
    others.insert(others.end(), options_.leaves.begin(), options_.leaves.end());
    step.with_gradients = with_gradients(parameters, others);
    micro_batches_.note_gradients(step.with_gradients);
  }
  record::Profiler& profiler = *scope_.pass_of(*ended_).profiler;
  profiler.go_on();
  update_.run(profiler, *ended_, *uses_, parameters);
  state_to_come_ = profiler.state_to_come();
}

void StepRecording::note_ended() {
  if (ended_ == nullptr) return;
  record::Tape& tape = *std::exchange(ended_, nullptr);
  RecordedPass& pass = scope_.pass_of(tape);
  plan::StepGraph graph = pass.profiler->finish(tape);
  if (!pass.is_micro_batch) {
    of_whole_ = std::move(graph);
    return;
  }
  micro_batches_.add(tape, std::move(graph));
  scope_.end_pass(tape);
}

}  // namespace snug::replay
