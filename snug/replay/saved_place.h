#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace snug::replay {

/// What a tensor looked like when autograd saved it.
struct SavedLook {
  explicit SavedLook(const at::Tensor& tensor);

  std::vector<std::int64_t> sizes;
  c10::ScalarType dtype;
  c10::Device device;
  const void* storage = nullptr;         ///< its address, only to be compared; nullptr without one
  std::optional<std::uint32_t> version;  ///< nothing where none is counted (inference mode)

  [[nodiscard]] bool same_metadata(const SavedLook& other) const;
  /// "Float [512, 64] on cpu".
  [[nodiscard]] std::string metadata() const;
};

/// Stands for a tensor that autograd saved in the forward pass of a checkpoint: what it looked like, and, as long as a
/// backward pass has need of it, the tensor that a rerun saved in its place. Not synchronized.
class SavedPlace {
 public:
  /// `saved`: in the forward pass.
  explicit SavedPlace(const at::Tensor& saved) : look_(saved) {}

  /// In the forward pass.
  [[nodiscard]] const SavedLook& look() const noexcept { return look_; }
  /// A hash of the contents in the forward pass, where they are to be compared.
  [[nodiscard]] const std::optional<std::uint64_t>& hash() const noexcept { return hash_; }
  void set_hash(std::uint64_t hash) noexcept { hash_ = hash; }

  [[nodiscard]] bool filled() const noexcept { return tensor_.defined(); }
  /// The rerun's tensor, as it is saved.
  void fill(at::Tensor tensor);
  void clear() { tensor_ = at::Tensor(); }

  /// Hands out the tensor, which is not kept. Throws Error, as autograd does without a checkpoint, when the function
  /// has written it since it was saved. The place must be filled.
  at::Tensor take();
  /// What was handed out before, where somebody still has it, else an undefined tensor. Throws as take() does.
  [[nodiscard]] at::Tensor taken_before() const;

 private:
  void check_unchanged(const at::Tensor& tensor) const;

  SavedLook look_;
  std::optional<std::uint64_t> hash_;
  at::Tensor tensor_;
  std::uint32_t filled_version_ = 0;  // of the rerun's tensor when it was saved
  c10::weak_intrusive_ptr<c10::TensorImpl> taken_{c10::intrusive_ptr<c10::TensorImpl>()};
};

}  // namespace snug::replay
