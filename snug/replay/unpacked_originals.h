#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace snug::replay {

/// Collects the tensors that the program itself saved, as this thread unpacks what stands for them. Autograd makes new
/// tensors of what saved-tensor hooks return where a gradient is asked for; a front end can give the node the original
/// in the place of such a one, with its identity and attributes. Scopes nest; the innermost collects.
class UnpackedOriginals {
 public:
  UnpackedOriginals();
  ~UnpackedOriginals();
  UnpackedOriginals(const UnpackedOriginals&) = delete;
  UnpackedOriginals& operator=(const UnpackedOriginals&) = delete;

  /// The innermost scope of the calling thread, or null.
  static UnpackedOriginals* here() noexcept;

  void add(at::Tensor original) { originals_.push_back(std::move(original)); }
  /// The original that `unpacked` was made for; `unpacked` itself where there is none.
  [[nodiscard]] at::Tensor original_of(const at::Tensor& unpacked) const;

 private:
  std::vector<at::Tensor> originals_;
  UnpackedOriginals* outer_;
};

}  // namespace snug::replay
