#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace snug::replay {

/// Tensors without owning them: each is here for as long as somebody else has it. Not synchronized.
class WeakTensors {
 public:
  /// Adds those that are not here yet, and returns them.
  std::vector<at::Tensor> add(const std::vector<at::Tensor>& tensors);
  /// Those that still exist, in the order in which they were added. Forgets the others.
  [[nodiscard]] std::vector<at::Tensor> alive();

 private:
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> tensors_;
};

}  // namespace snug::replay
