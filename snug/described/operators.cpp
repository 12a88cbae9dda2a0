#include "snug/described/operators.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/described/described_device.h"
#include "snug/described/kernel_seconds.h"
#include "snug/described/shape_rules.h"
#include "snug/described/stand_ins.h"
#include "snug/described/transform_tensors.h"

namespace snug::described {
namespace {

/// What kernels reach of what a device can do: a product of 8192 x 8192 numbers of bf16 runs at 80 % on an H100, and a
/// copy at 90 % of what its memory moves.
constexpr double kOfProducts = 0.8, kOfMemory = 0.9;
constexpr double kLeast = 4e-6, kLatency = 10e-6;  // of a kernel, and of a copy to or from the host
constexpr double kMuch = 1 << 20;                  // bytes, of which nobody reads single numbers

KernelSpeed speed() {
  const DeviceDescription& device = description();
  return {.least_seconds = kLeast,
          .flops = kOfProducts * device.flops,
          .flops_of_fp32 = kOfProducts * device.flops_of_fp32,
          .bytes_per_second = kOfMemory * device.bytes_per_second};
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

void run_on_meta(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  if (apply_shape_rule(op, stack)) return;
  try {
    op.callBoxedForDispatchKey(c10::DispatchKey::Meta, stack);
  } catch (const c10::Error& error) {
    const std::string why = error.what_without_backtrace();
    throw UsageError(
        fmt::format("{}: what {} makes cannot be told without contents ({}); plan this step where its device is",
                    description().name, c10::toString(op.operator_name()), why.substr(0, why.find('\n'))));
  }
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const StandIns call(op, *stack);
  torch::jit::Stack made = call.arguments();
  run_on_meta(op, made);
  if (!is_view(op.schema())) stream_clock().put(current_stream(), kernel_seconds(speed(), op, call.arguments(), made));
  for (c10::IValue& value : made) transform_tensors(value, [&](const at::Tensor& t) { return call.in_place_of(t); });
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack->end());
  stack->insert(stack->end(), made.begin(), made.end());
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> /*device*/,
                         std::optional<bool> /*pinned*/) {
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kDescribed),
                                           c10::DispatchKeySet(c10::DispatchKey::MAIA), c10::dtype_or_default(dtype));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> /*device*/, std::optional<bool> /*pinned*/,
                 std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(sizes, c10::GetAllocator(kDescribed), c10::DispatchKeySet(c10::DispatchKey::MAIA),
                                   c10::dtype_or_default(dtype), format);
}

/// Between the host and the device, or in it. What comes from there is 0, or whatever it was where it is much, so that
/// what plans move takes no memory of the host.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool /*non_blocking*/) {
  const bool crosses = self.device() != to.device();
  const auto bytes = static_cast<double>(to.nbytes());
  const KernelSpeed own = speed();
  stream_clock().put(
      current_stream(),
      crosses ? kLatency + bytes / (kOfMemory * description().host_bytes_per_second)
              : std::max(own.least_seconds, (bytes + static_cast<double>(self.nbytes())) / own.bytes_per_second));
  if (to.is_cpu() && bytes <= kMuch) {
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor(to).zero_();
  }
  return to;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, std::int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(
      sizes, strides.empty() ? at::IntArrayRef(c10::contiguous_strides(sizes)) : strides);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const auto elements = static_cast<std::int64_t>(storage.nbytes() / self.itemsize());
  return set_storage(self, std::move(storage), 0, {elements}, {1});
}

/// As CUDA chooses: FlashAttention for numbers of 16 bits without a mask, else the kernels of xFormers, which repeat no
/// heads. What the first makes is as large as what the CPU's operator of this name makes.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
                     bool grouped) {
  constexpr std::int64_t kWidest = 256;  // of FlashAttention's heads
  const bool is_masked = mask && mask->defined();
  const bool is_whole = query.dim() == 4 && key.dim() == 4 && at::isFloatingType(query.scalar_type()) &&
                        query.scalar_type() != at::kDouble;
  if (is_whole && !is_masked && query.element_size() == 2 && query.size(3) <= kWidest)
    return std::get<0>(
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, is_causal, std::nullopt, scale));
  if (is_whole && query.size(1) == key.size(1)) {
    const bool differentiated =
        at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad());
    return std::get<0>(at::_scaled_dot_product_efficient_attention(query, key, value, mask, differentiated, dropout,
                                                                   is_causal, scale));
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, is_causal, std::nullopt,
                                                            scale, grouped));
}

void record_stream(at::Tensor& /*self*/, c10::Stream /*stream*/) {}

/// Parameters of the host become the device's, as torch::nn::Module::to() does it.
bool may_become(const at::Tensor& /*self*/, const at::Tensor& from) {
  return from.device().type() == kDescribed || from.is_cpu();
}

TORCH_LIBRARY_IMPL(aten, MAIA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("scaled_dot_product_attention", &attention);
  library.impl("record_stream", &record_stream);
  library.impl("_has_compatible_shallow_copy_type", &may_become);
}

TORCH_LIBRARY_IMPL(aten, AutogradMAIA, library) { library.impl("scaled_dot_product_attention", &attention); }

TORCH_LIBRARY_IMPL(_, MAIA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace

/// Operators that accelerators have kernels for, and LibTorch a composition of others where there is none, are one
/// kernel here too.
void install_operators() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::MAIA, __FILE__, __LINE__);
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = c10::Dispatcher::singleton().findOp(name);
    const auto has = [&](c10::DispatchKey key) { return op && op->hasKernelForDispatchKey(key); };
    if (has(c10::DispatchKey::MAIA)) continue;
    const bool is_composed = has(c10::DispatchKey::CompositeExplicitAutograd) ||
                             has(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
    if (is_composed && (has(c10::DispatchKey::CPU) || has_shape_rule(name) || name.name.starts_with("aten::_foreach_")))
      library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  }
}

}  // namespace snug::described
