#include "snug/replay/session_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/plan/run/presets.h"
#include "snug/record/recording_key.h"
#include "snug/replay/anomaly.h"
#include "snug/replay/gradient_bytes.h"
#include "snug/replay/leaves_with_gradients.h"
#include "snug/replay/opaque_values.h"
#include "snug/replay/recording_scope.h"

namespace snug {
namespace {

bool have_gradients(const std::vector<at::Tensor>& parameters) {
  return std::ranges::any_of(parameters, [](const at::Tensor& p) { return p.grad().defined(); });
}

/// Of the step that begins.
replay::StepKind kind_of(const std::vector<at::Tensor>& parameters) {
  if (!have_gradients(parameters)) return replay::StepKind::First;
  return replay::has_gradient_hooks(parameters) ? replay::StepKind::Last : replay::StepKind::Later;
}

std::vector<replay::StepBook::Now> now_on(const std::vector<memory::DeviceMemory*>& devices,
                                          const std::vector<at::Tensor>& parameters) {
  std::vector<replay::StepBook::Now> now;
  for (const memory::DeviceMemory* device : devices)
    now.push_back({device->stats(), replay::gradient_bytes(parameters, *device)});
  return now;
}

std::vector<record::KnownStep> as_followed(std::vector<record::KnownStep> steps, Follow what) {
  if (what == Follow::All) return steps;
  for (record::KnownStep& step : steps)
    step.plan = std::make_shared<plan::MemoryPlan>(plan::plan_lossy_alone(*step.graph, *step.plan));
  return steps;
}

}  // namespace

void Session::Step::Unknown::end(record::Tape& tape) {
  const auto noted = std::exchange(profiler, nullptr);
  if (!noted) return;
  tape.remove_observer(*noted);
  if (unexpected || tape.divergence()) graph = noted->finish(tape);
}

Session::Step::Step(State& state)
    : state_(state),
      devices_(replay::memories_of(state.memory, state.others)),
      other_limits_(state.others),
      awaited_(state.memory),
      tracer_(std::make_shared<replay::StepTracer>(state.memory)),
      step_({.forward_begins = [this](int stage) { return forward_begins(stage); },
             .forward_over = [this](record::Tape& tape) { forward_over(tape); },
             .backward_begins = [this](record::Tape& tape,
                                       const replay::StepRun::Roots& roots) { backward_begins(tape, roots); },
             .backward_over = [this](replay::StepRun&, record::Tape& tape) { backward_over(tape); },
             .reached = [this](record::Tape& tape) { reached(tape); },
             .failed = [this](record::Tape& tape) { failed(tape); },
             // Other processes may have none: one of them logs the loss, say.
             .allows_further_passes = state.streamed == nullptr && state.book.asks_nobody()},
            state.steps.backward) {
  if (const auto& streamed = state.streamed) {
    streamed->next_step(kind_of(state.parameters.alive()));
    gradients_leave_.emplace(
        state.parameters.alive(), [streamed](const at::Tensor& parameter) { streamed->take_gradient(parameter); },
        replay::GradientHooks::For::Else);
  }
  if (state.follow == Follow::LossyAlone) {
    for_this_step_.emplace(state.memory, std::nullopt);
  } else if (state.limit && !state.limit->newest()) {
    for_this_step_.emplace(state.memory, state.budget->limit);
  }
}

Session::Step::~Step() {
  for (const auto& pass : passes_) release(*pass);
}

at::Tensor Session::Step::run(const replay::Forward& forward) {
  // Their gradients come while the step runs. Now: in the midst of it others may wait for what this process makes.
  if (state_.steps.in_micro_batches) begin(replay::StepKind::MicroBatch);
  at::Tensor result = run_unless_refused(forward);
  for (const auto& pass : passes_) pass->tape->remove_observer(*tracer_);  // other threads may evict
  for (const auto& pass : passes_) {
    // What has gone backward, or tells why the step has not. A further forward pass without a backward one was none.
    if (pass->went_backward || (!step_.has_micro_batches() && passes_begun_ == 1)) conclude(*pass);
  }
  learn();
  state_.steps.in_micro_batches = step_.has_micro_batches();
  report_.known = state_.book.size();
  state_.trace = tracer_->take();
  report_.replayed_ops = state_.trace.replayed_ops();
  report_.evictions = state_.trace.evictions();
  state_.last = std::move(report_);
  return result;
}

at::Tensor Session::Step::run_unless_refused(const replay::Forward& forward) {
  at::Tensor result;
  try {
    result = step_(forward);
  } catch (const replay::HasNoBackward& error) {
    // Nothing recorded it in advance: it is over, and the next ones go backward by that call.
    if (!state_.finds_parameters) throw;
    state_.steps.backward = replay::CallsGrad{.which = error.grad_calls()};
    result = error.returned();
  } catch (...) {
    forget_wrong_gradients();
    if (refusal_) std::rethrow_exception(refusal_);
    throw;
  }
  if (refusal_) std::rethrow_exception(refusal_);
  return result;
}

/// Where a replay had other bits, gradients that came before that was found are dropped: nothing is left of the step.
/// Those to which earlier steps have added stay.
void Session::Step::forget_wrong_gradients() const {
  const bool differed = failed_differing_ || std::ranges::any_of(passes_, [](const auto& pass) {
                          return pass->tape->verified().differed();
                        });
  if (!differed || !began_without_gradients_) return;
  for (const at::Tensor& parameter : state_.parameters.alive()) parameter.mutable_grad().reset();
}

std::shared_ptr<record::Tape> Session::Step::forward_begins(int stage) {
  if (!step_.has_micro_batches()) end_earlier_passes();
  auto pass = std::make_unique<Pass>();
  pass->is_micro_batch = step_.has_micro_batches();
  pass->stage = stage;
  pass->number = passes_begun_++;
  pass->tape = std::make_shared<record::Tape>(record::DecideLater{[this, one = pass.get()] { return decide(*one); }});
  pass->tape->values().use(state_.tiers);
  // A clock of its own runs for a device that is described and has no contents.
  if (state_.verify == VerifyReplay::Once && !state_.memory.own_seconds()) {
    if (pass->number == 0) state_.compared->forget_oldest();
    pass->tape->verify_replays_once(state_.compared, 0);
  } else if (state_.verify != VerifyReplay::Once) {
    pass->tape->verify_replays(state_.verify);
  }
  if (state_.anomalies == Anomalies::Refused) replay::watch_operators(*pass->tape);
  pass->tape->add_observer(tracer_);
  pass->evictors =
      std::make_unique<replay::TapeEvictors>(pass->tape, state_.memory, state_.others, replay::EvictionCost::Measured);
  passes_.push_back(std::move(pass));
  return passes_.back()->tape;
}

/// A step of several passes, one after the other, is as several steps: what the last one holds goes now.
void Session::Step::end_earlier_passes() {
  for (const auto& pass : passes_) {
    if (pass->went_backward) conclude(*pass);
    release(*pass);
  }
  passes_.clear();
  begun_ = false;
}

void Session::Step::begin(replay::StepKind kind) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(record::kRecordingKey);  // what an agreement runs
  const bool gradients_come = kind == replay::StepKind::MicroBatch;
  state_.book.begin(now_on(devices_, gradients_come ? std::vector<at::Tensor>() : state_.parameters.alive()), kind);
  if (state_.arena && passes_begun_ == 1) state_.arena->begin();
  begun_ = true;
}

// Steps begin by letting go of their gradients, or not: the first operator shows which kind this one is.
record::DecideLater::Decision Session::Step::decide(Pass& pass) {
  // A function may have made room for itself. The others of a group have given this step up.
  if (refusal_ && !state_.book.asks_nobody()) std::rethrow_exception(refusal_);
  refusal_ = nullptr;
  const replay::StepKind kind = kind_of(state_.parameters.alive());
  if (pass.number == 0) began_without_gradients_ = kind == replay::StepKind::First;
  pass.kind = pass.is_micro_batch ? replay::StepKind::MicroBatch : kind;
  if (!begun_) {
    try {
      begin(pass.kind);
    } catch (...) {
      refusal_ = std::current_exception();
      throw;
    }
  }
  // Each pass of a step comes again with the next step.
  const bool is_further = !pass.is_micro_batch && pass.number >= state_.steps.passes;
  pass.unknown.unexpected = !state_.book.expects(pass.kind) || is_further;
  if ((state_.steps.vary && state_.new_steps.profiles()) || pass.unknown.unexpected) {
    const plan::Codec lossy = state_.book.size() > 0 ? state_.book.graph().lossy : plan::Codec::None;
    pass.unknown.profiler = std::make_shared<record::Profiler>(record::gauges_of(devices_), lossy);
    if (pass.is_micro_batch) pass.unknown.profiler->take_turns(turns_);
  }
  // What comes in front of the first micro-batch is none.
  if (state_.steps.in_micro_batches && !pass.is_micro_batch && pass.unknown.unexpected)
    return {record::KeepSaved{}, pass.unknown.profiler};
  if (state_.book.size() == 0) return {record::KeepSaved{}, pass.unknown.profiler};
  std::vector<record::KnownStep> steps = as_followed(state_.book.steps(pass.kind), state_.follow);
  // Those of several stages may begin alike.
  std::ranges::stable_partition(steps, [&](const record::KnownStep& step) {
    return std::ranges::find(step.graph->stages, pass.stage) != step.graph->stages.end();
  });
  return {record::FollowPlan{std::move(steps)}, pass.unknown.profiler};
}

Session::Step::Passes::iterator Session::Step::find(const record::Tape& tape) {
  return std::ranges::find_if(passes_, [&](const auto& pass) { return pass->tape.get() == &tape; });
}

void Session::Step::forward_over(record::Tape& tape) {
  tape.finish();
  // From its beginning to its end.
  const record::KnownStep* const known = tape.known_step();
  const auto& divergence = tape.divergence();
  state_.book.forward_over(known != nullptr ? known->graph.get() : nullptr,
                           divergence ? std::optional(divergence->op) : std::nullopt);
  const Pass& pass = **find(tape);
  if (pass.unknown.profiler) pass.unknown.profiler->wait(tape);
  if (pass.is_micro_batch) most_in_flight_ = std::max(most_in_flight_, ++in_flight_);
}

void Session::Step::backward_begins(record::Tape& tape, const replay::StepRun::Roots& roots) {
  Pass& pass = **find(tape);
  if (pass.unknown.profiler) pass.unknown.profiler->go_on();
  if (state_.finds_parameters && pass.unknown.profiler) find_parameters(pass, roots);
  if (state_.anomalies == Anomalies::Refused) replay::watch_backward(roots, pass.tape);
}

/// Of a session without a sample: nobody has said which they are.
void Session::Step::find_parameters(Pass& pass, const replay::StepRun::Roots& roots) {
  const record::Tape& tape = *pass.tape;
  for (const c10::Storage& leaf : tape.values().leaf_storages()) memory::adopt(leaf);
  const std::vector<at::Tensor> leaves = replay::parameters_of(tape, roots, pass.unknown.profiler->leaves());
  replay::tag_weights(leaves);
  const bool are_first = state_.parameters.alive().empty();
  state_.add_parameters(leaves);
  if (!are_first) return;
  const replay::StepKind kind = kind_of(state_.parameters.alive());
  if (pass.number == 0) began_without_gradients_ = kind == replay::StepKind::First;
  if (!pass.is_micro_batch) pass.kind = kind;
}

void Session::Step::backward_over(record::Tape& tape) {
  const auto found = find(tape);
  Pass& pass = **found;
  pass.went_backward = true;
  if (state_.finds_parameters && !std::holds_alternative<replay::CallsGrad>(state_.steps.backward)) {
    state_.steps.backward = step_.function_is_over() ? replay::StepBackward(replay::ReturnsLoss{})
                                                     : replay::StepBackward(replay::CallsBackward{});
  }
  pass.unknown.end(tape);
  if (!pass.is_micro_batch || step_.function_is_over()) return;
  // What it holds, as its inputs, goes now.
  --in_flight_;
  conclude(pass);
  release(pass);
  passes_.erase(found);
}

void Session::Step::reached(record::Tape& tape) {
  --in_flight_;
  (*find(tape))->unknown.profiler.reset();  // whose turn it is not
}

void Session::Step::failed(record::Tape& tape) {
  failed_differing_ = failed_differing_ || tape.verified().differed();
  const auto found = find(tape);
  if (!(*found)->is_micro_batch) return;
  if (tape.finished()) --in_flight_;
  release(**found);
  passes_.erase(found);
}

void Session::Step::release(Pass& pass) const {
  // Saved tensors may keep the tape alive, but nobody is told of it any more.
  pass.tape->remove_observer(*tracer_);
  pass.tape->detach();
}

void Session::Step::conclude(Pass& pass) {
  record::Tape& tape = *pass.tape;
  replay::StepBook& book = state_.book;
  report_.moved_bytes += tape.values().offloaded_bytes();
  report_.compressed_bytes += tape.values().compressed_bytes();
  report_.lossy_bytes += tape.values().images().bytes();
  report_.compared_values += tape.verified().compared();
  for (std::string& line : replay::opaque_lines(tape)) {
    if (std::ranges::find(report_.opaque, line) == report_.opaque.end()) report_.opaque.push_back(std::move(line));
  }
  if (const auto& d = tape.divergence()) {
    report_.followed_plan = false;
    if (report_.divergence.empty())
      report_.divergence = fmt::format("operator {}: recorded {}, ran {}", d->op, d->expected, d->found);
    state_.steps.vary = true;
  } else if (const record::KnownStep* known = tape.known_step(); known != nullptr && pass.went_backward) {
    const bool was_new = book.ran(known->graph.get());
    if (!book.fits()) {
      report_.followed_plan = false;
      report_.divergence =
          book.is_searching() ? "its plan is still being searched" : "no plan of this step fits the budget";
    } else {
      if (was_new) state_.new_steps.followed();
      if (state_.finds_parameters) state_.steps.vary = false;  // until one differs again
    }
  } else if (known == nullptr) {
    report_.followed_plan = false;
    report_.divergence = book.size() > 0 ? "it has no micro-batches, and the steps before it had some"
                                         : "it is the first step, and none was recorded before";
  }
  // One whose backward pass failed, and which caught that, is half a step.
  if (!pass.went_backward) return;
  pass.unknown.end(tape);
  const bool is_known = tape.known_step() != nullptr && !tape.divergence();
  if (is_known && book.expects(pass.kind)) {  // a further pass, too, that is like one before
    if (!pass.is_micro_batch) state_.steps.passes = std::max(state_.steps.passes, pass.number + 1);
    return;
  }
  new_.push_back({.graph = std::exchange(pass.unknown.graph, std::nullopt),
                  .operators = tape.calls().chain(),
                  .kind = pass.kind,
                  .stage = pass.stage,
                  .number = pass.number,
                  .is_first_of_kind = pass.unknown.unexpected});
}

/// The first step of a kind is planned at once: one that finds gradients, say, is followed by others. Of a kind that is
/// known, one that differs is planned when it comes again, and training does not wait for the search.
void Session::Step::learn() {
  std::set<std::pair<std::uint64_t, replay::StepKind>> learnt;
  const bool planned_new_ones = state_.new_steps.profiles();
  for (New& one : new_) {
    // Several micro-batches may be new, and alike.
    if (!learnt.emplace(one.operators, one.kind).second) continue;
    if (one.graph && one.kind == replay::StepKind::MicroBatch) {
      one.graph->in_flight = most_in_flight_;
      one.graph->stages = {one.stage};
    }
    if (!one.is_first_of_kind) {
      const std::uint64_t key = one.operators ^ (static_cast<std::uint64_t>(one.kind) << 56U) ^
                                (static_cast<std::uint64_t>(one.stage) << 48U);
      one.graph = state_.new_steps.ran(key, std::move(one.graph));
    }
    if (!one.graph) continue;
    using Search = replay::StepBook::Search;
    if (one.kind != replay::StepKind::MicroBatch) state_.steps.passes = std::max(state_.steps.passes, one.number + 1);
    state_.book.add(*std::move(one.graph), one.kind,
                    one.is_first_of_kind ? Search::InThisThread : Search::InBackground);
    report_.planned_anew = true;
  }
  report_.stopped_planning = planned_new_ones && !state_.new_steps.profiles();
}

}  // namespace snug
