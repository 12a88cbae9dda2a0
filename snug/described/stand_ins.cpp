#include "snug/described/stand_ins.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "snug/described/described_device.h"
#include "snug/described/transform_tensors.h"

namespace snug::described {
namespace {

/// CUDA's operators read no memory of the host, but for a few: indices and lengths.
bool reads_host(std::string_view name) {
  constexpr std::array kThose = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};
  return std::ranges::find(kThose, name) != kThose.end();
}

/// With the same sizes, over as much of nothing.
at::Tensor meta_of(const at::Tensor& t) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), c10::GetAllocator(c10::kMeta),
                       /*resizable=*/true);
  at::Tensor meta = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                             c10::DispatchKeySet(c10::DispatchKey::Meta), t.dtype());
  meta.unsafeGetTensorImpl()->set_storage_offset(t.storage_offset());
  meta.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
  meta._set_conj(t.is_conj());
  meta._set_neg(t.is_neg());
  return meta;
}

/// What the operator has made of what stood for it.
void become(const at::Tensor& operand, const at::Tensor& meta) {
  const std::size_t bytes = meta.storage().nbytes();
  c10::StorageImpl* const storage = operand.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    storage->set_data_ptr_noswap(c10::GetAllocator(kDescribed)->allocate(bytes));
    storage->set_nbytes(bytes);
  }
  operand.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides());
}

}  // namespace

StandIns::StandIns(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  arguments_.assign(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
  for (c10::IValue& value : arguments_) {
    transform_tensors(value, [&](const at::Tensor& t) { return stand_in(t); });
    if (value.isDevice() && value.toDevice().type() == kDescribed) value = c10::IValue(c10::Device(c10::kMeta));
  }
  TORCH_CHECK(operands_.empty() || !on_host_ || reads_host(op.schema().name()),
              "Expected all tensors to be on the same device, but found the described one and the CPU (",
              op.schema().name(), ")");
}

at::Tensor StandIns::stand_in(const at::Tensor& t) {
  if (!t.defined() || t.is_meta()) return t;
  if (t.device().type() != kDescribed) {
    on_host_ = on_host_ || t.dim() > 0;
    return meta_of(t);
  }
  for (const auto& [operand, meta] : operands_) {
    if (operand.is_same(t)) return meta;
  }
  return operands_.emplace_back(t, meta_of(t)).second;
}

at::Tensor StandIns::in_place_of(const at::Tensor& made) const {
  if (!made.defined() || !made.is_meta()) return made;
  for (const auto& [operand, meta] : operands_) {
    if (!meta.is_same(made)) continue;
    become(operand, meta);
    return operand;
  }
  for (const auto& [operand, meta] : operands_) {
    if (meta.storage().unsafeGetStorageImpl() != made.storage().unsafeGetStorageImpl()) continue;
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(operand.storage()),
                                                               operand.key_set(), made.dtype());
    view.unsafeGetTensorImpl()->set_storage_offset(made.storage_offset());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides());
    view._set_conj(made.is_conj());
    view._set_neg(made.is_neg());
    return view;
  }
  return at::detail::empty_strided_generic(made.sizes(), made.strides(), c10::GetAllocator(kDescribed),
                                           c10::DispatchKeySet(c10::DispatchKey::MAIA), made.scalar_type());
}

}  // namespace snug::described
