#include "snug/record/recording.h"

#include <ATen/SavedTensorHooks.h>
#include <pthread.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/record/hidden_writes.h"
#include "snug/record/inherited.h"
#include "snug/record/operator_traits.h"
#include "snug/record/unshard_range.h"

namespace snug::record {
namespace {

constexpr int kNoBackward = -1;

thread_local std::shared_ptr<Tape> t_tape;
thread_local int t_task = kNoBackward;  // the backward pass that the recording began in
thread_local std::size_t t_python_hooks = 0;
int s_forks = 0;  // between the first process and this one
const std::shared_ptr<Tape> kNone;

struct GatesSlot {
  static constexpr std::string_view kName = "snug::record::OperatorGate";
  static constexpr int kNumber = 101;
};

/// The gates of one thread, the oldest first.
class Gates : public std::enable_shared_from_this<Gates> {
 public:
  void add(OperatorGate* gate) {
    const std::lock_guard lock(mutex_);
    all_.push_back(gate);
    s_of_all_threads.fetch_add(1, std::memory_order_relaxed);
  }
  void remove(OperatorGate* gate) {
    const std::lock_guard lock(mutex_);
    std::erase(all_, gate);
    s_of_all_threads.fetch_sub(1, std::memory_order_relaxed);
  }
  /// Whether any thread has some: asked in front of every operator.
  static bool anywhere() { return s_of_all_threads.load(std::memory_order_relaxed) > 0; }
  [[nodiscard]] std::vector<OperatorGate*> newest_first() {
    const std::lock_guard lock(mutex_);
    return {all_.rbegin(), all_.rend()};
  }
  [[nodiscard]] bool any() {
    const std::lock_guard lock(mutex_);
    return !all_.empty();
  }

  /// After a fork the child replaces them: what they would call may wait for threads that are not there.
  static std::shared_ptr<Gates>& of_this_thread() {
    thread_local auto gates = std::make_shared<Gates>();
    return gates;
  }

 private:
  std::mutex mutex_;
  std::vector<OperatorGate*> all_;
  inline static std::atomic<int> s_of_all_threads = 0;
};

/// The gates that operators of a backward pass call on whatever thread they run: those of the threads that started it
/// and the backward passes around it, the innermost thread first.
struct GatesOfBackward {
  std::vector<std::shared_ptr<Gates>> threads;

  [[nodiscard]] bool any() const {
    return std::ranges::any_of(threads, [](const auto& gates) { return gates->any(); });
  }
};
using Inherit = Inherited<GatesOfBackward, GatesSlot>;

/// Calls `call(gates)` with those of this thread, then with those that it works for.
template <class Call>
void for_each_thread(const Call& call) {
  const std::shared_ptr<Gates> own = Gates::of_this_thread();
  call(*own);
  if (const auto inherited = Inherit::shared()) {
    for (const std::shared_ptr<Gates>& gates : inherited->threads) {
      if (gates != own) call(*gates);
    }
  }
}

/// The tapes of all threads whose recording is over, and whose saved tensors may still be unpacked.
class FinishedTapes {
 public:
  void add(const std::shared_ptr<Tape>& tape) {
    const std::lock_guard lock(mutex_);
    const auto is_it = [&](const std::weak_ptr<Tape>& known) {
      return !known.owner_before(tape) && !tape.owner_before(known);
    };
    std::erase_if(all_, [&](const std::weak_ptr<Tape>& known) { return known.expired() || is_it(known); });
    all_.push_back(tape);
  }
  [[nodiscard]] std::vector<std::shared_ptr<Tape>> all() {
    std::vector<std::shared_ptr<Tape>> all;
    const std::lock_guard lock(mutex_);
    for (const std::weak_ptr<Tape>& tape : all_) {
      if (auto alive = tape.lock()) all.push_back(std::move(alive));
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<Tape>> all_;
};

/// Never freed: threads may outlive main(). The child of a fork has one of its own, as a thread that is not there may
/// hold the mutex.
FinishedTapes* s_finished = new FinishedTapes;

/// Whether this thread's operators have to come by the recorder's key.
void direct_operators() {
  bool seen = t_tape != nullptr;
  if (!seen) for_each_thread([&](Gates& gates) { seen = seen || gates.any(); });
  c10::impl::tls_set_dispatch_key_included(kRecordingKey, seen);
}

/// It begins or ends a range of a profiler.
void run_annotation(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  const std::string& name = op.schema().name();
  const bool begins = name == "profiler::_record_function_enter_new";
  const bool ends = name == "profiler::_record_function_exit";
  const c10::IValue argument = begins || ends ? stack[stack.size() - op.schema().arguments().size()] : c10::IValue();
  if (ends) UnshardRange::ended(argument);
  // Nothing has been freed yet that what was saved before is looked at by.
  if (const auto& tape = recording_tape()) {
    try {
      tape->bind_all();
    } catch (const Error&) {
      throw_into_libtorch();
    }
  }

  op.redispatchBoxed(keys, &stack);
  if (begins) UnshardRange::begun(argument.toStringRef(), stack.back());
}

/// Whether the kernel for these keys is the one that is made of other operators, as in inference mode, where autograd
/// does not take it apart: then those are what is recorded.
bool is_taken_apart(const c10::OperatorHandle& op, const OperatorTraits& traits, c10::DispatchKeySet below) {
  return traits.composite &&
         !op.hasKernelForDispatchKey(below.remove(c10::DispatchKey::BackendSelect).highestPriorityTypeId());
}

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorTraits& traits = traits_of(op);
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordingKey);
  if (HiddenWrites* const kernel = HiddenWrites::here()) {
    try {
      return kernel->run(op, below, *stack);
    } catch (const Error&) {
      throw_into_libtorch();
    }
  }
  if (is_taken_apart(op, traits, below)) return op.redispatchBoxed(below, stack);
  // Only the outermost call is seen: what another kernel calls is part of it.
  const c10::impl::ExcludeDispatchKeyGuard once(kRecordingKey);
  std::optional<OperatorGate::Around> around;
  if (Gates::anywhere()) {
    try {
      OperatorGate::tell_before(op, *stack);
      around.emplace(op, *stack);
    } catch (const Error&) {
      throw_into_libtorch();
    }
  }
  if (traits.annotation) {
    run_annotation(op, below, *stack);
  } else if (const auto& tape = recording_tape()) {
    try {
      tape->record(op, traits, below, *stack);
    } catch (const Error&) {
      throw_into_libtorch();
    }
  } else {
    HiddenWrites::run_kernel(op, traits, below, *stack);
  }
}

/// For the child of a fork: an object of the parent is not destroyed here, as that would wait for locks that threads
/// of the parent hold.
template <class T>
void leave_to_parent(std::shared_ptr<T> object) noexcept {
  static_cast<void>(new (std::nothrow) std::shared_ptr<T>(std::move(object)));
}

/// In the child of a fork inside of a step, as a DataLoader's worker is: nothing of it belongs to the step, so nothing
/// is recorded, and no gate is called.
void leave_step_to_parent() {
  ++s_forks;
  if (auto* const own = new (std::nothrow) FinishedTapes) s_finished = own;
  leave_to_parent(std::exchange(t_tape, nullptr));
  leave_to_parent(std::exchange(Gates::of_this_thread(), std::make_shared<Gates>()));
  c10::impl::tls_set_dispatch_key_included(kRecordingKey, false);
}

[[maybe_unused]] const int kAtFork = ::pthread_atfork(nullptr, nullptr, &leave_step_to_parent);

bool s_key_is_taken = false;

}  // namespace

// LibTorch registers first, as this library depends on it; a second fallback would end the process while it is loaded.
TORCH_LIBRARY_IMPL(_, Fake, library) {
  s_key_is_taken = c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kRecordingKey);
  if (!s_key_is_taken) library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>());
}

bool recording_key_is_taken() noexcept { return s_key_is_taken; }

const std::shared_ptr<Tape>& recording_tape() {
  // Operators of a backward pass that was started inside the scope are not the step's.
  if (!t_tape || torch::autograd::get_current_graph_task_id() != t_task) return kNone;
  return t_tape;
}

OperatorGate::OperatorGate(Calls calls)
    : calls_(std::move(calls)), leave_([this, gates = Gates::of_this_thread()] { gates->remove(this); }) {
  Gates::of_this_thread()->add(this);
  direct_operators();
}

OperatorGate::~OperatorGate() {
  leave_();
  direct_operators();
}

template <class Tell>
void OperatorGate::for_each(const Tell& tell) {
  for_each_thread([&](Gates& gates) {
    for (const OperatorGate* gate : gates.newest_first()) tell(gate->calls_);
  });
}

void OperatorGate::tell_before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for_each([&](const Calls& calls) {
    if (calls.before) calls.before(op, stack);
    if (!calls.before_write || UnshardRange::gathers()) return;
    const OperatorTraits& traits = traits_of(op);
    for_each_written(traits, arguments_on(stack, traits), calls.before_write);
  });
}

OperatorGate::Around::Around(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!Gates::anywhere()) return;
  try {
    for_each([&](const Calls& calls) {
      if (!calls.around) return;
      if (Over over = calls.around(op, stack)) over_.push_back(std::move(over));
    });
  } catch (...) {
    for (const Over& over : over_) over();
    throw;
  }
}

OperatorGate::Around::~Around() {
  for (const Over& over : over_) over();
}

void OperatorGate::tell_before_write(const at::Tensor& tensor) {
  for_each([&](const Calls& calls) {
    if (calls.before_write) calls.before_write(tensor);
  });
}

void OperatorGate::tell_before_draw(const at::Generator& generator) {
  for_each([&](const Calls& calls) {
    if (calls.before_draw) calls.before_draw(generator);
  });
}

GatesInBackward::Gates GatesInBackward::now() {
  auto all = std::make_shared<GatesOfBackward>();
  for_each_thread([&](record::Gates& gates) { all->threads.push_back(gates.shared_from_this()); });
  return all->any() ? all : nullptr;
}

GatesInBackward::GatesInBackward(const Gates& gates) {
  if (!gates) return;
  Inherit::push(std::static_pointer_cast<GatesOfBackward>(gates));
  pushed_ = true;
}

GatesInBackward::~GatesInBackward() {
  if (pushed_) Inherit::pop();
}

PythonHooksOutside::PythonHooksOutside()
    : previous_(std::exchange(t_python_hooks, at::SavedTensorDefaultHooks::get_tls_state().stack.size())) {}
PythonHooksOutside::~PythonHooksOutside() { t_python_hooks = previous_; }
bool PythonHooksOutside::any_inside() {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.size() > t_python_hooks;
}

Recording::Recording(std::shared_ptr<Tape> tape)
    : forks_(s_forks),
      previous_(std::exchange(t_tape, std::move(tape))),
      previous_task_(std::exchange(t_task, torch::autograd::get_current_graph_task_id())) {
  direct_operators();
  if (previous_ != t_tape && t_tape) t_tape->set_outer(previous_.get());
}

void tell_finished_tapes(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return;
  for (const std::shared_ptr<Tape>& tape : s_finished->all()) {
    tape->about_to_be_written(tensor);
  }
}

Recording::~Recording() {
  if (forks_ != s_forks) {  // of the parent process, whose tapes are left alone
    leave_to_parent(std::move(previous_));
    return;
  }
  if (t_tape && t_tape != previous_) {
    t_tape->set_outer(nullptr);
    s_finished->add(t_tape);
  }
  t_tape = std::move(previous_);
  t_task = previous_task_;
  direct_operators();
}

Unrecorded::Unrecorded(const std::vector<at::Tensor>& written, const std::vector<at::Tensor>& maybe_written) {
  if (HiddenWrites* const kernel = HiddenWrites::here(); kernel != nullptr && !inside_) {
    for (const auto* const tensors : {&written, &maybe_written}) {
      for (const at::Tensor& tensor : *tensors) kernel->writes(tensor);
    }
    return;
  }
  if (inside_) return;  // of an operator, which the tape replays as a whole
  const auto& tape = recording_tape();
  const auto tell = [&](const at::Tensor& tensor, Tape::Version version) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    OperatorGate::tell_before_write(tensor);
    if (version != Tape::Version::Unknown) tell_finished_tapes(tensor);
    if (!tape) return;
    tape->written_elsewhere(tensor.storage().unsafeGetStorageImpl());
    tape->note_written(tensor, version);
  };
  for (const at::Tensor& tensor : written) tell(tensor, Tape::Version::MayStay);
  for (const at::Tensor& tensor : maybe_written) tell(tensor, Tape::Version::Unknown);
}

}  // namespace snug::record
