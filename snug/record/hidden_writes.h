#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <unordered_map>
#include <vector>

namespace snug::record {

struct OperatorTraits;

/// Watches the operators that the kernel of a custom operator calls, and notices writes to tensors that are neither its
/// arguments nor allocated by it, such as a counter. A replay would repeat such a write. Lives while the kernel runs,
/// on the kernel's thread; scopes nest. Writes through raw pointers are not seen.
class HiddenWrites {
 public:
  /// Runs the kernel that `keys` choose, and watches it unless the operator is known to keep no state. Returns whether
  /// it has made such a write.
  static bool run_kernel(const c10::OperatorHandle& op, const OperatorTraits& traits, c10::DispatchKeySet keys,
                         torch::jit::Stack& stack);

  /// Watches from here on. `stack` ends with the arguments of the operator.
  HiddenWrites(const OperatorTraits& traits, const torch::jit::Stack& stack);
  ~HiddenWrites();
  HiddenWrites(const HiddenWrites&) = delete;
  HiddenWrites& operator=(const HiddenWrites&) = delete;

  /// The innermost scope of the calling thread, or null.
  static HiddenWrites* here() noexcept;

  /// Runs an operator that the kernel calls. Throws what an OperatorGate throws to prevent a write.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  /// The kernel is about to write the tensor. Throws as run() does.
  void writes(const at::Tensor& tensor);

 private:
  void add_own(const at::Tensor& tensor);

  // Storages of its arguments and those it has allocated. Weak references keep their addresses from being reused.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> own_;
  std::vector<at::Tensor> found_;  // each storage once
  HiddenWrites* outer_;
  c10::impl::ForceDispatchKeyGuard seen_;
};

}  // namespace snug::record
