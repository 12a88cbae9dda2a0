#include "snug/record/view.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <numeric>

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

std::uint32_t layout_of(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  auto hash = static_cast<std::uint64_t>(impl.storage_offset());
  const auto add = [&](std::int64_t number) {  // as MurmurHash3 mixes
    hash = (hash ^ static_cast<std::uint64_t>(number)) * 0xff51afd7ed558ccdULL;
    hash ^= hash >> 33U;
  };
  for (const std::int64_t size : impl.sizes()) add(size);
  for (const std::int64_t stride : impl.strides()) add(stride);
  return static_cast<std::uint32_t>(hash);
}

at::Tensor GeometryPool::tensor(const View& view, c10::Storage storage) const {
  at::Tensor result =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), view.keys, c10::scalarTypeToTypeMeta(view.dtype));
  result.unsafeGetTensorImpl()->set_sizes_and_strides(sizes(view), strides(view), view.offset);
  return result;
}

bool GeometryPool::overlap(const View& a, const View& b) const {
  const auto last = [&](const View& view) {  // byte, and one before the first where there is none
    std::int64_t element = view.offset;
    for (std::size_t i = 0; i < view.dimensions; ++i) {
      if (sizes(view)[i] == 0) return static_cast<std::int64_t>(-1);
      element += (sizes(view)[i] - 1) * strides(view)[i];
    }
    return (element + 1) * static_cast<std::int64_t>(c10::elementSize(view.dtype)) - 1;
  };
  const auto first = [](const View& view) {
    return view.offset * static_cast<std::int64_t>(c10::elementSize(view.dtype));
  };
  if (last(a) < first(b) || last(b) < first(a)) return false;
  if (a.dtype != b.dtype || sizes(a) != sizes(b) || strides(a) != strides(b)) return true;
  // Parts of one tensor, such as chunks of its columns: they differ by whole steps along each dimension.
  std::vector<std::size_t> by_stride(a.dimensions);
  std::iota(by_stride.begin(), by_stride.end(), 0);
  std::ranges::sort(by_stride, std::greater(), [&](std::size_t i) { return strides(a)[i]; });
  std::int64_t distance = std::abs(a.offset - b.offset);
  for (const std::size_t i : by_stride) {
    const std::int64_t stride = strides(a)[i];
    if (stride == 0) continue;
    if (distance / stride >= sizes(a)[i]) return false;
    distance %= stride;
  }
  return true;
}

bool GeometryPool::shows(const View& view, const at::Tensor& tensor) const {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return is_plain(tensor) && c10::typeMetaToScalarType(impl.dtype()) == view.dtype &&
         impl.storage_offset() == view.offset && impl.sizes() == sizes(view) && impl.strides() == strides(view) &&
         tensor.is_conj() == view.keys.has(c10::DispatchKey::Conjugate) &&
         tensor.is_neg() == view.keys.has(c10::DispatchKey::Negative);
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
