#pragma once

#include <ATen/core/Tensor.h>

namespace snug::replay {

/// As detach() does, but not an operator, which observers and gates would see.
inline at::Tensor detached(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(), /*allow_tensor_metadata_change=*/false));
}

}  // namespace snug::replay
