#include "snug/memory/byte_tensor.h"

#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>

namespace snug::memory {

at::Tensor byte_tensor(const c10::Storage& storage, Bytes bytes, Bytes offset) {
  const c10::DispatchKeySet keys(c10::computeDispatchKey(c10::kByte, c10::kStrided, storage.device()));
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), keys, c10::scalarTypeToTypeMeta(c10::kByte));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({bytes});
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  return tensor;
}

}  // namespace snug::memory
