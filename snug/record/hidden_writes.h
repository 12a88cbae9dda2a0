#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstddef>
#include <unordered_map>
#include <vector>

namespace snug::record {

/// Watches the operators that the kernel of an operator calls, and notices writes to tensors that it was not given and
/// did not make, as to a counter or a cache of its own: such a kernel must not run a second time. One scope for the
/// kernel's run, on its thread; scopes nest. Writes that do not come by the dispatcher are not seen.
class HiddenWrites {
 public:
  /// `stack` has the arguments of the operator, of which there are `arguments`.
  HiddenWrites(const torch::jit::Stack& stack, std::size_t arguments);
  ~HiddenWrites();
  HiddenWrites(const HiddenWrites&) = delete;
  HiddenWrites& operator=(const HiddenWrites&) = delete;

  /// The innermost scope of the calling thread, or null.
  static HiddenWrites* here() noexcept;

  /// Runs an operator that the kernel has called. Throws what gates do that must not see a tensor written.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);
  /// A kernel that does not come by the dispatcher is about to write it.
  void writes(const at::Tensor& tensor);
  /// What has been written so far, each storage once.
  [[nodiscard]] const std::vector<at::Tensor>& found() const noexcept { return found_; }

 private:
  void add_own(const at::Tensor& tensor);

  // Storages that it was given or has made. It may free them: no other one must get the address then.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> own_;
  std::vector<at::Tensor> found_;
  HiddenWrites* outer_;
  c10::impl::ForceDispatchKeyGuard seen_;
};

}  // namespace snug::record
