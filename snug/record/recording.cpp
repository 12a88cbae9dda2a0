#include "snug/record/recording.h"

#include <ATen/SavedTensorHooks.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/record/inherited.h"
#include "snug/record/operator_traits.h"
#include "snug/record/unshard_range.h"

namespace snug::record {
namespace {

constexpr int kNoBackward = -1;

thread_local std::shared_ptr<Tape> t_tape;
thread_local int t_task = kNoBackward;  // the backward pass that the recording began in
thread_local std::size_t t_python_hooks = 0;
const std::shared_ptr<Tape> kNone;

struct GatesSlot {
  static constexpr std::string_view kName = "snug::record::OperatorGate";
  static constexpr int kNumber = 101;
};

/// A thread's, the oldest first; where it works for another one's backward pass, that one's before them.
class Gates {
 public:
  using Inherit = Inherited<Gates, GatesSlot>;

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
  /// Whether any thread has some. One that has, or works for one that has, sees that.
  static bool anywhere() { return s_of_all_threads.load(std::memory_order_relaxed) > 0; }
  [[nodiscard]] std::vector<OperatorGate*> newest_first() {
    std::unique_lock lock(mutex_);
    std::vector<OperatorGate*> gates{all_.rbegin(), all_.rend()};
    const std::shared_ptr<Gates> outer = outer_;
    lock.unlock();
    if (!outer) return gates;
    const std::vector<OperatorGate*> before = outer->newest_first();
    gates.insert(gates.end(), before.begin(), before.end());
    return gates;
  }
  /// Those come before its own from now on; nullptr: none. Returns what has until now.
  std::shared_ptr<Gates> come_after(std::shared_ptr<Gates> outer) {
    const std::lock_guard lock(mutex_);
    return std::exchange(outer_, std::move(outer));
  }
  /// Whether it is these, or those come before its own.
  [[nodiscard]] bool includes(const Gates& others) {
    if (this == &others) return true;
    const std::lock_guard lock(mutex_);
    return outer_ && outer_->includes(others);
  }
  [[nodiscard]] bool any() {
    const std::lock_guard lock(mutex_);
    return !all_.empty() || (outer_ && outer_->any());
  }

  static const std::shared_ptr<Gates>& of_this_thread() {
    thread_local const auto gates = std::make_shared<Gates>();
    return gates;
  }

 private:
  std::mutex mutex_;
  std::vector<OperatorGate*> all_;
  std::shared_ptr<Gates> outer_;
  inline static std::atomic<int> s_of_all_threads = 0;  // asked in front of every operator
};

/// This thread's operators come by the recorder's key as long as somebody is there who sees them, whoever goes first.
void direct_operators() {
  const std::shared_ptr<Gates>& gates = Gates::of_this_thread();
  const std::shared_ptr<Gates> now = Gates::Inherit::shared();
  if (gates->any()) {
    if (now && !now->includes(*gates)) (void)gates->come_after(now);
    Gates::Inherit::set(gates);
  } else if (auto outer = gates->come_after(nullptr); outer && now == gates) {
    Gates::Inherit::set(std::move(outer));
  }
  Gates* const told = Gates::Inherit::get();
  c10::impl::tls_set_dispatch_key_included(kRecordingKey, t_tape != nullptr || (told != nullptr && told->any()));
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

void on_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  // Only the outermost call is seen: what a composite kernel calls is part of it.
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
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordingKey);
  if (traits_of(op).annotation) {
    run_annotation(op, below, *stack);
  } else if (const auto& tape = recording_tape()) {
    try {
      tape->record(op, below, *stack);
    } catch (const Error&) {
      throw_into_libtorch();
    }
  } else {
    op.redispatchBoxed(below, stack);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, Fake, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_operator>()); }

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
  Gates* const gates = Gates::Inherit::get();
  if (gates == nullptr) return;
  for (const OperatorGate* gate : gates->newest_first()) tell(gate->calls_);
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

PythonHooksOutside::PythonHooksOutside()
    : previous_(std::exchange(t_python_hooks, at::SavedTensorDefaultHooks::get_tls_state().stack.size())) {}
PythonHooksOutside::~PythonHooksOutside() { t_python_hooks = previous_; }
bool PythonHooksOutside::any_inside() {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.size() > t_python_hooks;
}

Recording::Recording(std::shared_ptr<Tape> tape)
    : previous_(std::exchange(t_tape, std::move(tape))),
      previous_task_(std::exchange(t_task, torch::autograd::get_current_graph_task_id())) {
  direct_operators();
  if (previous_ != t_tape && t_tape) t_tape->set_outer(previous_.get());
}

Recording::~Recording() {
  if (t_tape && t_tape != previous_) t_tape->set_outer(nullptr);
  t_tape = std::move(previous_);
  t_task = previous_task_;
  direct_operators();
}

Unrecorded::Unrecorded(const std::vector<at::Tensor>& written) {
  const auto& tape = recording_tape();
  for (const at::Tensor& tensor : written) {
    if (!tensor.defined() || !tensor.has_storage()) continue;
    OperatorGate::tell_before_write(tensor);
    if (tape) tape->written_elsewhere(tensor.storage().unsafeGetStorageImpl());
  }
}

}  // namespace snug::record
