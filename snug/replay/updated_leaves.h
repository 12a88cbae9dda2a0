#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <unordered_map>
#include <vector>

namespace snug::replay {

/// Leaves of a step function, without owning them: a write to one of them after its backward pass is the step's update.
/// Not synchronized.
class UpdatedLeaves {
 public:
  /// After a backward pass: all leaves that are there. Those of passes before stay noted.
  void note(const std::vector<at::Tensor>& leaves);

  /// Whether a write to this tensor is one to the storage of a leaf.
  [[nodiscard]] bool hold(const at::Tensor& written) const;
  /// The same of leaves that have a gradient, or had one when a backward pass was last over.
  [[nodiscard]] bool hold_with_gradient(const at::Tensor& written) const;

 private:
  struct Leaf {
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor;
    bool has_gradient;
  };
  struct OfStorage {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // no other comes to its address as long as this is here
    std::vector<Leaf> leaves;
    bool gone_with_gradient = false;
  };
  [[nodiscard]] const OfStorage* find(const at::Tensor& written) const;

  std::unordered_map<const c10::StorageImpl*, OfStorage> by_storage_;
};

}  // namespace snug::replay
