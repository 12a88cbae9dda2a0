#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <unordered_map>
#include <vector>

#include "snug/memory/device_memory.h"

namespace snug::record {

struct OperatorTraits;

/// Watches the operators that the kernel of a custom operator calls, and notices a state that it keeps: writes to
/// tensors that are neither its arguments nor allocated by it, such as a counter; tensors that it has allocated and
/// written in place, and keeps; and draws from a generator that it was not given. A replay would repeat them. Lives
/// while the kernel runs, on the kernel's thread. Writes through raw pointers are not seen.
class HiddenWrites {
 public:
  /// Runs the kernel that `keys` choose, and watches it unless the operator is known to keep no state. Returns whether
  /// it has turned out to keep one.
  static bool run_kernel(const c10::OperatorHandle& op, const OperatorTraits& traits, c10::DispatchKeySet keys,
                         torch::jit::Stack& stack);

  /// Watches from here on. `stack` ends with the arguments of the operator.
  HiddenWrites(const OperatorTraits& traits, const torch::jit::Stack& stack);
  ~HiddenWrites();
  HiddenWrites(const HiddenWrites&) = delete;
  HiddenWrites& operator=(const HiddenWrites&) = delete;

  /// That of the calling thread, or null.
  static HiddenWrites* here() noexcept;

  /// Runs an operator that the kernel calls. Throws what an OperatorGate throws to prevent a write.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  /// The kernel is about to write the tensor. Throws as run() does.
  void writes(const at::Tensor& tensor);

 private:
  /// A storage. The weak reference keeps its address from being used again.
  struct Own {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    bool is_argument = false;
    bool written = false;
  };
  void add_own(const at::Tensor& tensor, bool is_argument = false);
  void draws(const at::Generator& generator);
  /// Whether the kernel keeps a state. `results` are the last values of `stack`.
  [[nodiscard]] bool keeps_state(const torch::jit::Stack& stack, std::size_t results) const;

  HiddenWrites* outer_;  // of the kernel of a replay's operator, within this one
  memory::AllocationTime began_ = memory::allocation_time();
  std::unordered_map<const void*, Own> own_;
  std::vector<at::Generator> given_;  // and the default ones
  std::vector<at::Tensor> found_;     // each storage once
  bool draws_ = false;                // from one that it was not given
  c10::impl::ForceDispatchKeyGuard seen_;
};

}  // namespace snug::record
