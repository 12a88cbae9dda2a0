#include "snug/record/view.h"

#include <c10/core/TensorImpl.h>

namespace snug::record {

View GeometryPool::add(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  View view;
  view.keys = impl.key_set();
  view.offset = impl.storage_offset();
  view.geometry = static_cast<std::int32_t>(pool_.size());
  view.dimensions = static_cast<std::uint16_t>(impl.dim());
  view.dtype = c10::typeMetaToScalarType(impl.dtype());
  view.device = impl.device().index();
  const c10::IntArrayRef sizes = impl.sizes();
  const c10::IntArrayRef strides = impl.strides();
  pool_.insert(pool_.end(), sizes.begin(), sizes.end());
  pool_.insert(pool_.end(), strides.begin(), strides.end());
  return view;
}

at::Tensor GeometryPool::tensor(const View& view, c10::Storage storage) const {
  at::Tensor result =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), view.keys, c10::scalarTypeToTypeMeta(view.dtype));
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes(view), strides(view), view.offset);
  return result;
}

bool is_plain(const at::Tensor& tensor) {
  using enum c10::DispatchKey;
  // Asked of every tensor of every operator: in one look.
  constexpr c10::DispatchKeySet kUnusual({Quantized, NestedTensor, ZeroTensor, Python});
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return !impl.key_set().has_any(kUnusual) && impl.layout() == c10::kStrided && impl.has_storage() &&
         !impl.is_wrapped_number() && !impl.is_meta() && !impl.has_symbolic_sizes_strides();
}

bool is_constant(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_wrapped_number() || tensor._is_zerotensor() || tensor.is_meta();
}

}  // namespace snug::record
