#include "snug/replay/session.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <exception>
#include <unordered_set>

#include "snug/base/errors.h"
#include "snug/memory/awaited_frees.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/owned_contents.h"
#include "snug/memory/tag.h"
#include "snug/plan/run/presets.h"
#include "snug/record/profiler.h"
#include "snug/record/recording.h"
#include "snug/replay/anomaly.h"
#include "snug/replay/eviction.h"
#include "snug/replay/gradient_hooks.h"
#include "snug/replay/opaque_values.h"
#include "snug/replay/other_devices.h"
#include "snug/replay/step_book.h"
#include "snug/replay/step_run.h"
#include "snug/replay/step_trace.h"
#include "snug/replay/streamed_tensors.h"
#include "snug/replay/wrapped_tensor.h"

namespace snug {
namespace {

/// Tags a gradient as soon as it stands in .grad, so that the split by tag is right during backward too.
class TagGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const torch::autograd::Variable& variable) override {
    const at::Tensor& gradient = variable.grad();
    if (gradient.defined() && gradient.has_storage()) memory::retag(gradient.storage(), memory::Tag::Gradients);
  }
};

bool have_gradients(const std::vector<at::Tensor>& parameters) {
  return std::ranges::any_of(parameters, [](const at::Tensor& p) { return p.grad().defined(); });
}

/// Of the step that begins.
replay::StepKind kind_of(const std::vector<at::Tensor>& parameters) {
  if (!have_gradients(parameters)) return replay::StepKind::First;
  return replay::has_gradient_hooks(parameters) ? replay::StepKind::Last : replay::StepKind::Later;
}

/// For its life, a step's, gradients of streamed weights leave as they do.
class GradientsLeave {
 public:
  GradientsLeave(const std::shared_ptr<StreamedTensors>& streamed, const std::vector<at::Tensor>& parameters) {
    if (!streamed) return;
    streamed->next_step(kind_of(parameters));
    hooks_.emplace(
        parameters, [streamed](const at::Tensor& parameter) { streamed->take_gradient(parameter); },
        replay::GradientHooks::For::Else);
  }

 private:
  std::optional<replay::GradientHooks> hooks_;
};

/// On the device. Several may be views of one storage, as DistributedDataParallel has them.
Bytes gradient_bytes(const std::vector<at::Tensor>& parameters, const memory::DeviceMemory& memory) {
  std::unordered_set<const c10::StorageImpl*> storages;
  Bytes bytes = 0;
  for (const at::Tensor& p : parameters) {
    if (!p.grad().defined()) continue;
    const std::optional<replay::WrappedTensor> wrapped = replay::unwrapped(p.grad());
    for (const at::Tensor& gradient : wrapped ? wrapped->inside : std::vector{p.grad()}) {
      if (!gradient.has_storage() || gradient.device() != memory.device()) continue;
      if (memory::has_owner(gradient)) continue;  // it takes none
      if (storages.insert(gradient.storage().unsafeGetStorageImpl()).second)
        bytes += memory.rounded(static_cast<Bytes>(gradient.storage().nbytes()));
    }
  }
  return bytes;
}

/// Of all kinds of steps, each once.
std::vector<at::Tensor> parameters_of(const std::vector<replay::PlannedStep>& kinds) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const void*> known;
  for (const auto& [step, planner] : kinds) {
    for (const at::Tensor& p : step.parameters) {
      if (known.insert(p.unsafeGetTensorImpl()).second) parameters.push_back(p);
    }
  }
  return parameters;
}

/// What an unknown step takes is noted as it runs, as far as its backward pass: what comes after it is no part of it.
struct Unknown {
  std::shared_ptr<record::Profiler> profiler;  // while it may be unknown, and runs
  bool unexpected = false;                     // nothing like it is known
  std::optional<plan::StepGraph> graph;

  /// The backward pass is over.
  void end(record::Tape& tape) {
    const auto noted = std::exchange(profiler, nullptr);
    if (!noted) return;
    tape.remove_observer(*noted);
    if (unexpected || tape.divergence()) graph = noted->finish(tape);
  }
};

/// Saved tensors may keep the tape alive, but nobody is told of it any more.
struct Detached {
  record::Tape& tape;
  const record::TapeObserver& tracer;
  ~Detached() {
    tape.remove_observer(tracer);
    tape.detach();
  }
};

/// Whom allocations of a step ask for room.
struct RoomMakers {
  RoomMakers(const std::shared_ptr<record::Tape>& tape, memory::DeviceMemory& own,
             const std::vector<DeviceBudget>& budgets)
      : evictor(tape, own, replay::EvictionCost::Measured),
        others(budgets, tape, replay::EvictionCost::Measured),
        awaited(own) {}
  replay::Evictor evictor;
  replay::OtherDevices others;
  memory::AwaitedFrees awaited;
};

/// In the order of their budgets.
std::vector<memory::DeviceMemory*> memories_of(memory::DeviceMemory& own, const std::vector<DeviceBudget>& others) {
  std::vector<memory::DeviceMemory*> all{&own};
  for (const DeviceBudget& other : others) all.push_back(&memory::device_memory(other.device));
  return all;
}

std::vector<replay::StepBook::Now> now_on(const std::vector<memory::DeviceMemory*>& devices,
                                          const std::vector<at::Tensor>& parameters) {
  std::vector<replay::StepBook::Now> now;
  for (const memory::DeviceMemory* device : devices)
    now.push_back({device->stats(), gradient_bytes(parameters, *device)});
  return now;
}

std::shared_ptr<record::Profiler> profiler_of(const std::vector<memory::DeviceMemory*>& devices, plan::Codec lossy) {
  std::vector<record::MemoryGauge> gauges;
  for (memory::DeviceMemory* device : devices) gauges.emplace_back(*device);
  return std::make_shared<record::Profiler>(std::move(gauges), lossy);
}

std::vector<record::KnownStep> as_followed(std::vector<record::KnownStep> steps, Follow what) {
  if (what == Follow::All) return steps;
  for (record::KnownStep& step : steps)
    step.plan = std::make_shared<plan::MemoryPlan>(plan::plan_lossy_alone(*step.graph, *step.plan));
  return steps;
}

/// Throws what `refusal` is set to meanwhile, even where the function catches it.
at::Tensor run_unless_refused(replay::StepRun& step, const replay::Forward& forward,
                              const std::exception_ptr& refusal) {
  at::Tensor result;
  try {
    result = step(forward);
  } catch (...) {
    if (refusal) std::rethrow_exception(refusal);
    throw;
  }
  if (refusal) std::rethrow_exception(refusal);
  return result;
}

template <class T>
std::vector<T> only(T one) {
  std::vector<T> all;
  all.push_back(std::move(one));
  return all;
}

}  // namespace

struct Session::State {
  memory::DeviceMemory& memory;
  replay::StepBook book;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> hooked;
  std::optional<plan::Budget> budget;
  std::unique_ptr<memory::HeldLimit> limit;
  std::vector<DeviceBudget> others;
  std::vector<std::unique_ptr<memory::HeldLimit>> other_limits;
  bool steps_vary = false;  // an unknown step has come up
  VerifyReplay verify = VerifyReplay::Off;
  Anomalies anomalies = Anomalies::Ignored;
  Follow follow = Follow::All;
  std::shared_ptr<memory::Tiers> tiers = std::make_shared<memory::Tiers>();
  std::shared_ptr<StreamedTensors> streamed{};
  std::shared_ptr<replay::StepArena> arena{};
  StepReport last;
  replay::StepTrace trace;

  ~State() {
    for (const at::Tensor& p : hooked) {
      // Somebody may have put another in its place.
      const auto& hook = torch::autograd::impl::post_acc_grad_hooks(p);
      if (dynamic_cast<const TagGradient*>(hook.get()) != nullptr)
        torch::autograd::impl::set_post_acc_grad_hooks(p, nullptr);
    }
  }
};

Session::Session(replay::RecordedStep step, std::string_view strategy, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement)
    : Session(only(std::move(step)), strategy, budget, memory, std::move(agreement)) {}

Session::Session(replay::RecordedStep step, plan::Planner planner, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement)
    : Session(only(replay::PlannedStep{std::move(step), std::move(planner)}), budget, memory, std::move(agreement)) {}

Session::Session(std::vector<replay::RecordedStep> kinds, std::string_view strategy, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement, std::vector<DeviceBudget> others)
    : Session{// Braces: in this order.
              replay::or_tell(*agreement, [&] { return replay::planned(std::move(kinds), strategy); }), budget, memory,
              std::move(agreement), std::move(others)} {}

Session::Session(std::vector<replay::PlannedStep> kinds, std::optional<plan::Budget> budget,
                 memory::DeviceMemory& memory, std::shared_ptr<Agreement> agreement, std::vector<DeviceBudget> others) {
  others = replay::with_indices(std::move(others));
  replay::or_tell(*agreement, [&] { replay::check_other_budgets(others, memory.device()); });
  std::vector<at::Tensor> parameters = parameters_of(kinds);
  std::vector<Bytes> gradients;
  for (const memory::DeviceMemory* device : memories_of(memory, others))
    gradients.push_back(gradient_bytes(parameters, *device));
  replay::StepBook book(std::move(kinds), replay::budgets_of(budget, others), gradients, std::move(agreement));
  state_.reset(new State{.memory = memory,
                         .book = std::move(book),
                         .parameters = std::move(parameters),
                         .hooked = {},
                         .budget = budget,
                         .limit = budget ? std::make_unique<memory::HeldLimit>(memory, budget->limit) : nullptr,
                         .others = std::move(others),
                         .other_limits = {},
                         .last = {},
                         .trace = {}});
  for (const auto& [device, bytes] : state_->others)
    state_->other_limits.push_back(std::make_unique<memory::HeldLimit>(memory::device_memory(device), bytes));
  for (const at::Tensor& p : state_->parameters) {
    // A hook that is already there is somebody else's, and there is room for one.
    if (torch::autograd::impl::post_acc_grad_hooks(p)) continue;
    torch::autograd::impl::set_post_acc_grad_hooks(p, std::make_unique<TagGradient>());
    state_->hooked.push_back(p);
  }
}

Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

void Session::verify_replays(VerifyReplay how) noexcept { state_->verify = how; }

void Session::use(std::shared_ptr<memory::Tiers> tiers) noexcept { state_->tiers = std::move(tiers); }
const memory::Tiers& Session::tiers() const noexcept { return *state_->tiers; }

void Session::use(std::shared_ptr<StreamedTensors> streamed) noexcept { state_->streamed = std::move(streamed); }

void Session::use_arena() { state_->arena = replay::StepArena::of(state_->memory); }
std::optional<replay::StepArena::Stats> Session::arena() const {
  return state_->arena ? std::optional(state_->arena->stats()) : std::nullopt;
}

void Session::anomalies(Anomalies become) noexcept { state_->anomalies = become; }
void Session::follow(Follow what) noexcept { state_->follow = what; }

const plan::MemoryPlan& Session::plan() const { return state_->book.plan(); }
const plan::StepGraph& Session::graph() const { return state_->book.graph(); }
const plan::Planner& Session::planner() const { return state_->book.planner(); }
Bytes Session::predicted_peak() const { return state_->book.predicted_peak(); }
const Session::StepReport& Session::last_step() const { return state_->last; }
const replay::StepTrace& Session::last_trace() const { return state_->trace; }

namespace {

void finish_forward(record::Tape& tape, const replay::StepBook& book) {
  tape.finish();
  // From its beginning to its end.
  const record::KnownStep* const known = tape.divergence() ? nullptr : tape.known_step();
  book.forward_over(known != nullptr ? known->graph.get() : nullptr);
}

}  // namespace

at::Tensor Session::run(const replay::Forward& forward) {
  State& s = *state_;
  const GradientsLeave gradients(s.streamed, s.parameters);
  // A younger session, of another model perhaps, has its own budget.
  std::optional<memory::HeldLimit> for_this_step;
  if (s.follow == Follow::LossyAlone) {
    for_this_step.emplace(s.memory, std::nullopt);
  } else if (s.limit && !s.limit->newest()) {
    for_this_step.emplace(s.memory, s.budget->limit);
  }
  const std::vector<memory::DeviceMemory*> devices = memories_of(s.memory, s.others);
  auto kind = replay::StepKind::First;
  Unknown unknown;
  std::exception_ptr refusal;
  // Steps begin by letting go of their gradients, or not: the first operator shows which kind this one is.
  const auto decide = [&]() -> record::DecideLater::Decision {
    // A function may have made room for itself. The others of a group have given this step up.
    if (refusal && !s.book.asks_nobody()) std::rethrow_exception(refusal);
    refusal = nullptr;
    try {
      const c10::impl::ExcludeDispatchKeyGuard unseen(record::kRecordingKey);  // what an agreement runs
      kind = kind_of(s.parameters);
      s.book.begin(now_on(devices, s.parameters), kind);
      if (s.arena) s.arena->begin();
    } catch (...) {
      refusal = std::current_exception();
      throw;
    }
    unknown.unexpected = !s.book.expects(kind);
    if (s.steps_vary || unknown.unexpected) unknown.profiler = profiler_of(devices, s.book.graph().lossy);
    return {record::FollowPlan{as_followed(s.book.steps(kind), s.follow)}, unknown.profiler};
  };
  const auto tape = std::make_shared<record::Tape>(record::DecideLater{decide});
  tape->values().use(s.tiers);
  if (s.verify != VerifyReplay::Off) tape->verify_replays(s.verify);
  const bool watches = s.anomalies == Anomalies::Refused;
  if (watches) replay::watch_operators(*tape);
  const auto tracer = std::make_shared<replay::StepTracer>(s.memory);
  tape->add_observer(tracer);
  const Detached detached{*tape, *tracer};
  const RoomMakers room(tape, s.memory, s.others);

  replay::StepRun step(tape, {.forward_over =
                                  [&](const replay::StepRun::Roots& roots) {
                                    finish_forward(*tape, s.book);
                                    if (watches) replay::watch_backward(roots, tape);
                                  },
                              .backward_over = [&](replay::StepRun&) { unknown.end(*tape); }});
  const at::Tensor result = run_unless_refused(step, forward, refusal);
  tape->remove_observer(*tracer);  // other threads may evict
  s.trace = tracer->take();
  s.last = {.replayed_ops = s.trace.replayed_ops(),
            .moved_bytes = tape->values().offloaded_bytes(),
            .compressed_bytes = tape->values().compressed_bytes(),
            .lossy_bytes = tape->values().images().bytes(),
            .evictions = s.trace.evictions(),
            .followed_plan = !tape->divergence().has_value(),
            .divergence = {},
            .known = s.book.size(),
            .opaque = replay::opaque_lines(*tape),
            .planned_anew = false};
  if (const auto& d = tape->divergence()) {
    s.last.divergence = fmt::format("operator {}: recorded {}, ran {}", d->op, d->expected, d->found);
    s.steps_vary = true;
  } else if (const record::KnownStep* known = tape->known_step(); known != nullptr && step.went_backward()) {
    s.book.ran(known->graph.get());
    if (!s.book.fits()) {
      s.last.followed_plan = false;
      s.last.divergence = "no plan of this step fits the budget";
    }
  }
  // One whose backward pass failed, and which caught that, is half a step.
  if (step.went_backward()) unknown.end(*tape);
  if (unknown.graph) {
    s.book.add(*std::move(unknown.graph), kind);
    s.last.planned_anew = true;
    s.last.known = s.book.size();
  }
  return result;
}

}  // namespace snug
