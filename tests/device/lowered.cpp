#include "tests/device/lowered.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "snug/described/transform_tensors.h"
#include "snug/record/recording_key.h"
#include "tests/device/launch.h"
#include "tests/device/simulated_device.h"
#include "tests/device/simulated_generator.h"

namespace snug::testing {
namespace {

using described::transform_tensors;

/// Copies of tensors of the CPU; those that share memory share their copies'.
class Copies {
 public:
  at::Tensor of(const at::Tensor& t) {
    if (!t.defined() || !t.is_cpu() || !t.has_storage()) return t;
    for (const auto& [original, copy] : tensors_) {
      if (original.is_same(t)) return copy;
    }
    at::Tensor copy = at::detail::make_tensor<c10::TensorImpl>(storage_of(t), t.key_set(), t.dtype());
    copy.unsafeGetTensorImpl()->set_storage_offset(t.storage_offset());
    copy.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
    tensors_.emplace_back(t, copy);
    return copy;
  }

 private:
  c10::Storage storage_of(const at::Tensor& t) {
    const void* const data = t.storage().data();
    for (const auto& [address, storage] : storages_) {
      if (address == data) return storage;
    }
    const std::size_t bytes = t.storage().nbytes();
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::GetCPUAllocator()->allocate(bytes),
                         c10::GetCPUAllocator(), /*resizable=*/true);
    if (bytes > 0) std::memcpy(storage.mutable_data(), data, bytes);
    storages_.emplace_back(data, storage);
    return storage;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
  std::vector<std::pair<const void*, c10::Storage>> storages_;
};

/// CUDA's operators read no memory of the host, but for a few: indices and lengths.
bool reads_host(std::string_view name) {
  constexpr std::array kThose = {
      "aten::index",         "aten::index_put",         "aten::index_put_",           "aten::_index_put_impl_",
      "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_pack_padded_sequence"};
  return std::ranges::find(kThose, name) != kThose.end();
}

/// The device's tensor gets as much memory as what stood for it, and its contents.
void grow(const StandIn& operand) {
  const c10::Storage& now = operand.cpu.storage();
  c10::StorageImpl* const storage = operand.simulated.storage().unsafeGetStorageImpl();
  const c10::DeviceGuard on(operand.simulated.device());
  c10::DataPtr fresh = c10::GetAllocator(kSimulated)->allocate(now.nbytes());
  // What else its stream still does to that memory comes before its contents.
  Streams::instance().catch_up(current_simulated_stream(operand.simulated.device()));
  if (now.nbytes() > 0) std::memcpy(fresh.get(), now.data(), now.nbytes());
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(now.nbytes());
}

}  // namespace

Lowered::Lowered(const c10::OperatorHandle& op, const torch::jit::Stack& stack) : op_(op) {
  const auto& arguments = op.schema().arguments();
  stack_.assign(stack.end() - static_cast<std::ptrdiff_t>(arguments.size()), stack.end());
  for (std::size_t i = 0; i < stack_.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    writes_ = writes_ || (alias != nullptr && alias->isWrite());
    transform_tensors(stack_[i], [&](const at::Tensor& t) { return lower(t); });
    lower_device(stack_[i]);
  }
  TORCH_CHECK(operands_.empty() || !on_host_ || reads_host(op.schema().name()),
              "Expected all tensors to be on the same device, but found ", *device_, " and the CPU (",
              op.schema().name(), ")");
  for (std::size_t i = 0; i < stack_.size(); ++i) {
    if (arguments[i].name() == "generator") lower_generator(stack_[i]);
  }
  for (const auto& result : op.schema().returns())
    is_view_ = is_view_ || (result.alias_info() != nullptr && !result.alias_info()->isWrite());
}

c10::Device Lowered::device() const { return device_.value_or(current_simulated_device()); }

Made Lowered::run_on_copies() const {
  Made made;
  Copies copies;
  torch::jit::Stack stack = stack_;
  for (c10::IValue& value : stack) transform_tensors(value, [&](const at::Tensor& t) { return copies.of(t); });
  for (const auto& [simulated, cpu] : operands_) made.operands.push_back({simulated, copies.of(cpu)});
  made.results = run(std::move(stack));
  return made;
}

Lowered Lowered::for_later() const {
  Lowered later(*this);
  later.operands_.clear();
  for (c10::IValue& value : later.stack_) {
    if (value.isGenerator()) value = c10::IValue(value.toGenerator().clone());
  }
  return later;
}

torch::jit::Stack Lowered::run(torch::jit::Stack stack) const {
  const at::AutoDispatchBelowADInplaceOrView below;
  // What a device's kernel does inside is not seen.
  const c10::impl::ExcludeDispatchKeyGuard unseen(record::kRecordingKey);
  op_.callBoxedForDispatchKey(c10::DispatchKey::CPU, stack);
  return stack;
}

at::Tensor Lowered::lower(const at::Tensor& t) {
  if (!t.defined()) return t;
  if (t.device().type() != kSimulated) {
    on_host_ = on_host_ || t.dim() > 0;
    return t;
  }
  TORCH_CHECK(!device_ || *device_ == t.device(), "Expected all tensors to be on the same device, but found ", *device_,
              " and ", t.device(), " (", op_.schema().name(), ")");
  device_ = t.device();
  for (const auto& [simulated, cpu] : operands_) {
    if (simulated.is_same(t)) return cpu;
  }
  operands_.push_back({t, as_cpu(t)});
  return operands_.back().cpu;
}

void Lowered::lower_device(c10::IValue& value) {
  if (!value.isDevice() || value.toDevice().type() != kSimulated) return;
  const c10::Device asked = value.toDevice();
  device_ = asked.has_index() ? asked : current_simulated_device();
  value = c10::IValue(c10::Device(c10::kCPU));
}

void Lowered::lower_generator(c10::IValue& value) const {
  if (value.isNone()) {
    value = c10::IValue(cpu_generator_of(simulated_generator(device().index())));
  } else if (value.isGenerator() && value.toGenerator().device().type() == kSimulated) {
    value = c10::IValue(cpu_generator_of(value.toGenerator()));
  }
}

at::Tensor of_operand(const at::Tensor& result, const std::vector<StandIn>& operands) {
  for (const StandIn& operand : operands) {
    if (!operand.cpu.is_same(result)) continue;
    if (operand.has_grown()) grow(operand);
    operand.simulated.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
    return operand.simulated;
  }
  for (const auto& [simulated, cpu] : operands) {
    if (!result.has_storage() || result.storage().nbytes() == 0 || cpu.storage().data() != result.storage().data())
      continue;
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(simulated.storage()),
                                                               simulated.key_set(), result.dtype());
    view.unsafeGetTensorImpl()->set_storage_offset(result.storage_offset());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides());
    view._set_conj(result.is_conj());
    view._set_neg(result.is_neg());
    return view;
  }
  return {};
}

}  // namespace snug::testing
