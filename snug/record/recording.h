#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "snug/record/recording_key.h"
#include "snug/record/tape.h"

namespace snug::record {

/// Whether something had registered a fallback for the recorder's dispatch key before this library was loaded: then
/// nothing can be recorded. See recording_key.h.
bool recording_key_is_taken() noexcept;

/// The tape that this thread records on now, or nullptr: outside a Recording, and while a backward pass runs that was
/// started inside of it.
const std::shared_ptr<Tape>& recording_tape();

/// In a Python process: those torch.autograd.graph.saved_tensors_hooks that are active on this thread when the scope
/// begins are around it, and what comes later is further inside. Whatever takes saved tensors has one: recordings,
/// regions, reruns.
class PythonHooksOutside {
 public:
  PythonHooksOutside();
  ~PythonHooksOutside();
  PythonHooksOutside(const PythonHooksOutside&) = delete;
  PythonHooksOutside& operator=(const PythonHooksOutside&) = delete;

  /// Whether some of them are further inside than the innermost scope.
  static bool any_inside();

 private:
  std::size_t previous_;
};

/// Sees every operator below autograd and autocast that this thread runs while the scope lives, recorded or not, but
/// for those inside of others, and those that autograd's threads run of a backward pass that this thread has started:
/// they call, too, at any time until that pass is over. All scopes of a thread see it, the newest first, but for the
/// rest of them where one throws. They may end in any order, but none while one of them is called.
class OperatorGate {
 public:
  using Call = std::function<void(const c10::OperatorHandle& op, const torch::jit::Stack& stack)>;
  using Over = std::function<void()>;
  /// Those that are empty are not called.
  struct Calls {
    /// In front of an operator; its arguments are the last ones of the stack. May throw: it does not run then.
    Call before = {};
    /// The same, and also of an operator that runs again in a replay. What it returns, if anything, is called when the
    /// operator is over, and its results are the last ones of the stack, or has failed; it must not throw.
    std::function<Over(const c10::OperatorHandle& op, const torch::jit::Stack& stack)> around = {};
    /// In front of whatever writes a tensor of a storage: an operator, or code that announces it (see Unrecorded). May
    /// throw, as before.
    std::function<void(const at::Tensor&)> before_write = {};
    /// In front of a draw from a generator that the kernel of an operator was not given.
    std::function<void(const at::Generator&)> before_draw = {};
  };
  explicit OperatorGate(Calls calls);
  ~OperatorGate();
  OperatorGate(const OperatorGate&) = delete;
  OperatorGate& operator=(const OperatorGate&) = delete;

  /// What scopes are told that see what this thread does.
  static void tell_before(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  /// Its life is the operator's.
  class Around {
   public:
    Around(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
    ~Around();
    Around(const Around&) = delete;
    Around& operator=(const Around&) = delete;

   private:
    std::vector<Over> over_;
  };
  static void tell_before_write(const at::Tensor& tensor);
  static void tell_before_draw(const at::Generator& generator);

 private:
  template <class Tell>
  static void for_each(const Tell& tell);

  Calls calls_;
  std::function<void()> leave_;  // the thread's, be it this one or not
};

/// Around a backward pass that this thread starts: the autograd threads that run it call this thread's gates.
class GatesInBackward {
 public:
  /// The gates that operators of a thread call.
  using Gates = std::shared_ptr<void>;
  /// Of this thread, those of the thread that it works for included.
  static Gates now();

  explicit GatesInBackward(const Gates& gates = now());
  ~GatesInBackward();
  GatesInBackward(const GatesInBackward&) = delete;
  GatesInBackward& operator=(const GatesInBackward&) = delete;

 private:
  bool pushed_ = false;
};

/// Records this thread's operators on a tape for the life of the scope. Scopes nest; the innermost tape
/// records.
class Recording {
 public:
  explicit Recording(std::shared_ptr<Tape> tape);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

 private:
  int forks_;
  std::shared_ptr<Tape> previous_;
  int previous_task_;
  PythonHooksOutside python_hooks_;
};

/// To be called before `tensor` is written without its version's rising: tapes whose recording is over copy what their
/// replays need of it, and what they have saved of it is as it will be then, as in plain autograd.
void tell_finished_tapes(const at::Tensor& tensor);

/// For code that writes without telling autograd, a compiler's kernels among it: nothing that this thread runs in the
/// life of the scope is recorded, and what it makes is a leaf when it is read afterwards. `written` is what it writes
/// of the tensors that were there before; of `maybe_written` it may only read some. For these, the tape that records
/// assumes a write, but tapes that are finished do not: they would copy every weight that a kernel reads. Throws what
/// an OperatorGate does that must not see them written.
class Unrecorded {
 public:
  explicit Unrecorded(const std::vector<at::Tensor>& written, const std::vector<at::Tensor>& maybe_written = {});

 private:
  bool inside_ = c10::impl::tls_is_dispatch_key_excluded(kRecordingKey);
  c10::impl::ExcludeDispatchKeyGuard key_{kRecordingKey};
};

}  // namespace snug::record
