#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <vector>

namespace snug::record {

/// Leaves of a step that is tried out: the gradients that its backward pass makes are of no use to anybody, and those
/// of before come back. What would hand gradients on, to other processes above all, which may not try it out at this
/// time, is to do the same with its own alone.
class TrialGradients {
 public:
  TrialGradients() = default;
  ~TrialGradients();
  TrialGradients(const TrialGradients&) = delete;
  TrialGradients& operator=(const TrialGradients&) = delete;

  /// From here on, until this object is gone. Does not keep the leaf alive.
  void add(const at::Tensor& leaf);

  /// Whether the gradient that arrives at the leaf now is one. From any thread.
  [[nodiscard]] static bool on(const at::Tensor& leaf);

 private:
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> leaves_;
};

}  // namespace snug::record
