#include "snug/replay/executor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/match.h"
#include "snug/memory/byte_tensor.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/swallowed_refusal.h"
#include "snug/memory/tag.h"
#include "snug/record/denormals.h"
#include "snug/record/recording.h"
#include "snug/record/tape.h"
#include "snug/replay/starved.h"

namespace snug::replay {
namespace {

constexpr int kMostSchedules = 100;  // where each takes from the one before, they may go on for ever

using plan::Output;
using plan::RunAgain;
using plan::ValueId;
using record::Argument;
using record::Call;
using record::Tape;
using record::TapeObserver;
using record::ValueStore;

/// Every key that was handled before the recorder saw the call: autograd, autocast, and the recorder itself. Not lazy
/// conjugation and its kin, which tensors that a kernel makes inside need.
c10::DispatchKeySet handled_keys() {
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, record::kRecordingKey);
  const c10::DispatchKeySet lazy(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  return c10::DispatchKeySet(c10::DispatchKeySet::FULL) - below - lazy;
}

/// Modes of the thread that recorded the call, which this thread need not be in. LibTorch 2.11 has them below the
/// recorder's key.
c10::DispatchKeySet keys_of_modes() {
  using enum c10::DispatchKey;
  return c10::DispatchKeySet({Python, PythonTLSSnapshot, FuncTorchDynamicLayerBackMode, FuncTorchDynamicLayerFrontMode,
                              PreDispatch, PythonDispatcher});
}

/// The cache knows weights by their tensors, and a replay's are temporary.
record::AutocastState without_cache(record::AutocastState state) {
  state.cache = false;
  return state;
}

c10::Storage new_storage(Bytes bytes, c10::Device device) {
  return at::empty({bytes}, at::TensorOptions(at::kByte).device(device)).storage();
}

class PinScope {
 public:
  PinScope(ValueStore& values, const plan::ReplaySchedule& replay) : values_(values), replay_(replay) {
    values_.pin(replay_);
  }
  ~PinScope() { values_.unpin(replay_, finished_); }
  PinScope(const PinScope&) = delete;
  PinScope& operator=(const PinScope&) = delete;

  void step_done() { ++finished_; }

 private:
  ValueStore& values_;
  const plan::ReplaySchedule& replay_;
  std::size_t finished_ = 0;
};

/// What runs is a replay's: observers know, and autograd, autocast and the recorder do not see it.
class ReplayScope {
 public:
  explicit ReplayScope(Tape& tape) : tape_(tape), below_(handled()) {
    tape_.observers().tell_recording(&TapeObserver::aside_begins);
  }
  /// Not after a failure, which ends the step.
  ~ReplayScope() {
    if (std::uncaught_exceptions() == failures_) tape_.observers().tell_recording(&TapeObserver::aside_ends);
  }
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  static const c10::DispatchKeySet& handled() {
    static const c10::DispatchKeySet keys = handled_keys();
    return keys;
  }

  Tape& tape_;
  int failures_ = std::uncaught_exceptions();
  c10::impl::ExcludeDispatchKeyGuard below_;
  memory::TagScope tag_{memory::Tag::Activations};
};

/// Keeps the inputs of an operator from eviction while it runs.
class RunScope {
 public:
  RunScope(ValueStore& values, const RunAgain& step) : values_(values), step_(step), begun_(values.begin(step)) {}
  ~RunScope() {
    if (begun_) values_.end(step_);
  }
  RunScope(const RunScope&) = delete;
  RunScope& operator=(const RunScope&) = delete;

  [[nodiscard]] bool begun() const { return begun_; }

 private:
  ValueStore& values_;
  const RunAgain& step_;
  bool begun_;
};

/// The storages that the call writes, in place of the recorded ones: what the operator overwrites is copied first,
/// unless nothing needs it any more.
class WrittenStorages {
 public:
  WrittenStorages(Tape& tape, const RunAgain& step) {
    ValueStore& values = tape.values();
    const auto inputs = tape.flow().inputs(step.op);
    for (const Output& out : tape.flow().outputs(step.op)) {
      const ValueId before = out.overwrites;
      if (before == plan::kNoValue || find(before) != nullptr) continue;
      c10::Storage storage;
      if (std::ranges::find(inputs, before) == inputs.end()) {
        const record::TapeMutex::Lent lent(tape.mutex());
        storage = new_storage(values.nbytes(before), values.device(before));
      } else if (std::ranges::find(step.copies, before) != step.copies.end()) {
        const record::TapeMutex::Lent lent(tape.mutex());
        storage = memory::byte_tensor(values.storage(before), values.nbytes(before)).clone().storage();
      } else {
        storage = values.take(before);
      }
      replaced_.emplace_back(before, std::move(storage));
    }
  }
  const c10::Storage* find(ValueId value) const {
    for (const auto& [before, storage] : replaced_) {
      if (before == value) return &storage;
    }
    return nullptr;
  }

 private:
  std::vector<std::pair<ValueId, c10::Storage>> replaced_;
};

torch::jit::Stack arguments_of(const Tape& tape, const Call& call, const WrittenStorages& written) {
  const record::CallLog& calls = tape.calls();
  const auto tensor = [&](std::int32_t index) {
    const record::View& view = calls.view(index);
    if (view.value == plan::kNoValue) return at::Tensor();
    const c10::Storage* replaced = written.find(view.value);
    at::Tensor same =
        calls.geometry().tensor(view, replaced != nullptr ? *replaced : tape.values().storage(view.value));
    // Products that the kernel calls choose their own by this.
    if (call.traits->foreign && view.requires_grad) same.set_requires_grad(true);
    return same;
  };
  torch::jit::Stack stack;
  const std::size_t count = call.traits->arguments.size();
  stack.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Argument& argument = calls.argument(call, i);
    switch (argument.kind) {
      case Argument::Kind::Constant:
        stack.push_back(calls.constant(argument.index));
        break;
      case Argument::Kind::Tensor:
        stack.emplace_back(tensor(argument.index));
        break;
      case Argument::Kind::TensorList: {
        std::vector<at::Tensor> list;
        for (std::int32_t k = 0; k < argument.count; ++k) list.push_back(tensor(argument.index + k));
        stack.emplace_back(std::move(list));
        break;
      }
      case Argument::Kind::OptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (std::int32_t k = 0; k < argument.count; ++k) {
          at::Tensor t = tensor(argument.index + k);
          list.push_back(t.defined() ? std::optional(std::move(t)) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  return stack;
}

at::Tensor result(const torch::jit::Stack& stack, const record::OutputSlot& slot) {
  const c10::IValue& value = stack[static_cast<std::size_t>(slot.position)];
  return slot.element < 0 ? value.toTensor() : value.toTensorList().get(static_cast<std::size_t>(slot.element));
}

/// Runs the call on `stack` with the state around it that it had.
void call_again(Tape& tape, plan::OpId op, torch::jit::Stack& stack) {
  const Call& call = tape.calls().call(op);
  const record::CallState state = tape.calls().state(call);
  const at::AutoGradMode grad_mode(state.grad_mode);
  // Of an operator that is told a type of device alone, the current one is meant.
  const c10::Device made_on = tape.values().device(tape.flow().outputs(op).front().value);
  const c10::OptionalDeviceGuard device(made_on.is_cpu() ? std::nullopt : std::optional(made_on));
  const record::GlobalSettingsScope settings(state.settings);
  const record::DenormalScope denormals(state.denormals);
  const memory::OperationScope operation(&call.traits->name);
  std::deque<record::DrawAgain> draws;
  for (const record::Draw& draw : tape.calls().draws(call)) draws.emplace_back(draw);
  bool drew_the_same = true;
  {
    // Operators that the kernel calls are cast as they were.
    std::optional<record::AutocastScope> autocast;
    if (state.autocast) autocast.emplace(without_cache(*state.autocast));
    const c10::OperatorHandle handle = tape.calls().operator_of(call);
    const c10::DispatchKeySet keys = state.keys - keys_of_modes();
    const record::TapeMutex::Lent lent(tape.mutex());  // `call` may move from here on
    const record::OperatorGate::Around around(handle, stack);
    handle.redispatchBoxed(keys, &stack);
    memory::rethrow_swallowed_refusal();
    for (record::DrawAgain& draw : draws) drew_the_same = draw.finish() && drew_the_same;
  }
  if (drew_the_same) return;
  throw Error(
      fmt::format("replay: another thread drew random numbers from the generator of {} while that ran, now or in the "
                  "forward pass, so it cannot draw the same again and the gradient would be wrong; give the other "
                  "thread a generator of its own",
                  tape.calls().describe(op)));
}

/// A replay must return the size, type, sizes and strides of the first run: saved views rely on them. `result`:
/// undefined where the operator has written an argument.
void check_made(const Tape& tape, plan::OpId op, ValueId value, const c10::Storage& made,
                const record::OutputSlot& slot, const at::Tensor& result) {
  const auto bytes = static_cast<Bytes>(made.nbytes());
  const c10::ScalarType was = slot.dtype, is = result.defined() ? result.scalar_type() : was;
  if (bytes == tape.values().nbytes(value) && is == was) {
    if (!result.defined() || record::layout_of(result) == slot.layout) return;
    throw Error(fmt::format(
        "replay: {} returns a result with other sizes or strides, now {} and {}, than in the forward pass: something "
        "beside its inputs has changed since, as flags of its kernels; leave that as it is until backward is over, or "
        "keep what the operator makes (Choice::MustKeep)",
        tape.calls().describe(op), fmt::join(result.sizes(), "x"), fmt::join(result.strides(), "x")));
  }
  throw Error(fmt::format(
      "replay: {} makes {} bytes of {} where it made {} of {} in the forward pass: something beside its "
      "inputs has changed since; leave that as it is until backward is over, or keep what the operator "
      "makes (Choice::MustKeep)",
      tape.calls().describe(op), bytes, c10::toString(is), tape.values().nbytes(value), c10::toString(was)));
}

/// The operator is about to run in the current streams of its operands' devices.
void enter_streams(Tape& tape, plan::OpId op) {
  for (const ValueId input : tape.flow().inputs(op)) {
    tape.streams().enter(tape.values().device(input));
    tape.streams().used(tape.values().storage(input).unsafeGetStorageImpl());
  }
  for (const Output& out : tape.flow().outputs(op)) tape.streams().enter(tape.values().device(out.value));
}

/// A copy to the host that does not block is over before whoever comes next reads it; in the forward pass the program
/// has waited, which is no operator.
void finish_for_the_host(const Tape& tape, plan::OpId op) {
  const ValueStore& values = tape.values();
  const auto on_host = [&](const Output& out) { return values.device(out.value).is_cpu(); };
  if (!std::ranges::any_of(tape.flow().outputs(op), on_host)) return;
  for (const ValueId input : tape.flow().inputs(op)) record::StreamOrder::finish(values.device(input));
}

void run_again(Tape& tape, const RunAgain& step) {
  tape.lookup().check_inputs(step.op);
  enter_streams(tape, step.op);
  const Call& call = tape.calls().call(step.op);
  const WrittenStorages written(tape, step);
  torch::jit::Stack stack = arguments_of(tape, call, written);
  call_again(tape, step.op, stack);
  finish_for_the_host(tape, step.op);
  tape.replayed(step.op);
  const auto outputs = tape.flow().outputs(step.op);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const ValueId value = outputs[i].value;
    if (tape.ledger().resident(value)) continue;
    const record::OutputSlot& slot = tape.calls().output_slot(call, i);
    const at::Tensor made = slot.is_argument ? at::Tensor() : result(stack, slot);
    const c10::Storage& storage = made.defined() ? made.storage() : *written.find(outputs[i].overwrites);
    check_made(tape, step.op, value, storage, slot, made);
    tape.put(value, storage);
  }
  if (tape.observers().see_results()) {
    const record::TapeMutex::Lent lent(tape.mutex());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const record::OutputSlot& slot = tape.calls().output_slot(call, i);
      if (!slot.is_argument && slot.position != call.traits->scratch_result)
        tape.observers().tell(&TapeObserver::made, tape, step.op, result(stack, slot), record::Run::Again);
    }
  }
  stack.clear();
  tape.values().finish(step);
}

enum class Outcome : std::uint8_t {
  Done,
  Starved,  ///< what it would read has been evicted
  Lost,     ///< it cannot be read, and is to be made again
};

Outcome do_step(Tape& tape, const plan::ReplaySchedule::Step& step) {
  return std::visit(Match{
                        [&](const plan::Fetch& fetch) {
                          tape.streams().enter(tape.values().device(fetch.value));
                          const bool there = tape.ledger().resident(fetch.value) || tape.load(fetch.value);
                          return there ? Outcome::Done : Outcome::Lost;
                        },
                        [&](const RunAgain& run) {
                          for (const ValueId input : tape.flow().inputs(run.op)) {
                            tape.streams().enter(tape.values().device(input));
                            if (tape.drop_if_spoilt(input)) return Outcome::Lost;
                            if (tape.ledger().resident(input) && !tape.asked_for(input)) return Outcome::Lost;
                          }
                          const RunScope scope(tape.values(), run);
                          if (scope.begun()) run_again(tape, run);
                          return scope.begun() ? Outcome::Done : Outcome::Starved;
                        },
                    },
                    step);
}

}  // namespace

void fetch_ahead(Tape& tape) {
  std::optional<ReplayScope> scope;
  tape.fetch_ahead([&](ValueId value) {
    if (!scope) scope.emplace(tape);
    const record::StreamOrder::Scope streams(tape.streams());
    tape.streams().enter(tape.values().device(value));
    try {
      return tape.load(value);
    } catch (...) {
      if (!memory::refusal_in(std::current_exception())) throw;
      return false;  // when it is asked for, there may be room
    }
  });
}

void materialize(Tape& tape, ValueId value) {
  const ReplayScope scope(tape);
  // In need, eviction takes what a replay would still have read. The rest of it is scheduled again then; what a
  // schedule has made so far is a source of the next one.
  Starved starved{tape.flow().producer(value)};
  for (int attempt = 0; !tape.ledger().resident(value);) {
    if (attempt == kMostSchedules) starved.refuse(tape);
    const plan::ReplaySchedule replay = tape.ledger().schedule(value);
    PinScope pins(tape.values(), replay);
    const record::StreamOrder::Scope streams(tape.streams());
    for (const plan::ReplaySchedule::Step& step : replay.steps) {
      const Outcome outcome = do_step(tape, step);
      if (outcome == Outcome::Starved) {
        starved = Starved::at(tape, std::get<RunAgain>(step).op);
        ++attempt;
      }
      if (outcome != Outcome::Done) break;  // what is lost is fetched no more, so that this comes to an end
      pins.step_done();
    }
  }
}

}  // namespace snug::replay
