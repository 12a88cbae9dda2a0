#include "snug/record/view.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

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
  view.requires_grad = impl.requires_grad();
  // By half, not to twice as much: this is the largest of what a recorded call takes. One by one, which is faster than
  // insert() for the few that a tensor has.
  const std::size_t needed = pool_.size() + 2 * impl.sizes().size();
  if (pool_.capacity() < needed) pool_.reserve(needed + pool_.size() / 2);
  for (const std::int64_t size : impl.sizes()) pool_.push_back(size);
  for (const std::int64_t stride : impl.strides()) pool_.push_back(stride);
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

namespace {

/// How far two views go along a dimension that they have in common, in elements of `stride`.
struct Steps {
  std::int64_t stride = 0, of_a = 1, of_b = 1;
};

/// Whether a step of a and one of b along each dimension lead to elements that are as far apart. Each of `dimensions`
/// leads further than all before it together, so that there are two numbers of steps to try.
bool meet(std::span<const Steps> dimensions, std::int64_t distance) {
  if (dimensions.empty()) return distance == 0;
  const Steps& steps = dimensions.back();
  const std::int64_t toward_zero = distance / steps.stride;
  for (const std::int64_t by : {toward_zero, toward_zero + (distance < 0 ? -1 : 1)}) {
    if (by < steps.of_a && -by < steps.of_b &&
        meet(dimensions.first(dimensions.size() - 1), distance - by * steps.stride))
      return true;
  }
  return false;
}

}  // namespace

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
  if (a.dtype != b.dtype) return true;
  // Parts of one tensor, such as rows, or chunks of columns: they differ by whole steps along each dimension.
  std::vector<Steps> all;
  const auto add = [&](const View& view, std::int64_t Steps::*of) {
    for (std::size_t i = 0; i < view.dimensions; ++i) {
      const std::int64_t stride = strides(view)[i];
      if (sizes(view)[i] == 1 || stride == 0) continue;
      auto steps = std::ranges::find(all, stride, &Steps::stride);
      if (steps == all.end()) steps = all.insert(all.end(), Steps{.stride = stride});
      if (std::exchange((*steps).*of, sizes(view)[i]) != 1) return false;
    }
    return true;
  };
  if (!add(a, &Steps::of_a) || !add(b, &Steps::of_b)) return true;
  std::ranges::sort(all, std::less(), &Steps::stride);
  std::int64_t reach = 0;
  for (const Steps& steps : all) {
    if (reach >= steps.stride) return true;
    reach += (std::max(steps.of_a, steps.of_b) - 1) * steps.stride;
  }
  return meet(all, b.offset - a.offset);
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
