#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include <optional>
#include <vector>

namespace snug::testing {

/// What stood for a tensor of the device in a call.
struct StandIn {
  at::Tensor simulated, cpu;

  /// The operator has given it more memory.
  [[nodiscard]] bool has_grown() const { return cpu.storage().nbytes() != simulated.storage().nbytes(); }
};

/// What a call makes: tensors of the CPU.
struct Made {
  torch::jit::Stack results;
  std::vector<StandIn> operands;
};

/// A call of an operator on a simulated device, with operands of the CPU in place of those of the device. Throws
/// c10::Error where they are on two devices, or in the host's memory.
class Lowered {
 public:
  /// The arguments are the last of the stack.
  Lowered(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  [[nodiscard]] c10::Device device() const;
  [[nodiscard]] bool writes() const { return writes_; }
  [[nodiscard]] bool is_view() const { return is_view_ && !writes_; }

  [[nodiscard]] Made run() const { return {run(stack_), operands_}; }
  /// Without writing anything but what its generator draws.
  [[nodiscard]] Made run_on_copies() const;
  /// The same, to be run later: it draws what this one would draw now, and holds no memory of the device.
  [[nodiscard]] Lowered for_later() const;

 private:
  [[nodiscard]] torch::jit::Stack run(torch::jit::Stack stack) const;
  at::Tensor lower(const at::Tensor& t);
  void lower_device(c10::IValue& value);
  void lower_generator(c10::IValue& value) const;

  c10::OperatorHandle op_;
  torch::jit::Stack stack_;
  std::vector<StandIn> operands_;
  std::optional<c10::Device> device_;
  bool writes_ = false, is_view_ = false;
  bool on_host_ = false;  // some operand is, of more than one number
};

/// The device's tensor that a result is, with the result's sizes from now on, or a view of one; undefined for a new
/// one.
at::Tensor of_operand(const at::Tensor& result, const std::vector<StandIn>& operands);

}  // namespace snug::testing
