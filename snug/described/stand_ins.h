#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <utility>
#include <vector>

namespace snug::described {

/// Meta tensors in place of those of the described device, of which LibTorch knows what sizes operators make, and the
/// other way round. Of one call.
class StandIns {
 public:
  /// The arguments of a call, the last values of the stack. Throws c10::Error where some are in the host's memory that
  /// operators of an accelerator cannot read.
  StandIns(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  [[nodiscard]] const torch::jit::Stack& arguments() const noexcept { return arguments_; }
  /// A result that the call has made: the operand itself, with its sizes from now on, a view of it, or a new tensor.
  [[nodiscard]] at::Tensor in_place_of(const at::Tensor& made) const;

 private:
  at::Tensor stand_in(const at::Tensor& t);
  torch::jit::Stack arguments_;
  std::vector<std::pair<at::Tensor, at::Tensor>> operands_;  // of the device, and what stands for it
  bool on_host_ = false;                                     // some operand is, of more than one number
};

}  // namespace snug::described
