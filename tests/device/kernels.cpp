// The few operators that LibTorch asks a backend for.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/device/launch.h"
#include "tests/device/pinned_memory.h"
#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

std::atomic<std::int64_t> g_copies_to_failure{-1};
SimulatedSpeed g_speed;

bool is_simulated(const at::Tensor& t) { return t.defined() && t.device().type() == kSimulated; }

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                         std::optional<bool> /*pinned*/) {
  const c10::DeviceGuard on(device.value_or(current_simulated_device()));
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kSimulated),
                                           c10::DispatchKeySet(c10::DispatchKey::HPU), c10::dtype_or_default(dtype));
}

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> device, std::optional<bool> /*pinned*/,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard on(device.value_or(current_simulated_device()));
  return at::detail::empty_generic(sizes, c10::GetAllocator(kSimulated), c10::DispatchKeySet(c10::DispatchKey::HPU),
                                   c10::dtype_or_default(dtype), format);
}

bool host_is_pinned(const at::Tensor& t) { return t.is_cpu() && is_pinned(t.storage().data()); }

/// Between the host and a device, two devices, or in one. As on CUDA: in the current stream of the device, of the
/// source's where there are two, and the other's waits; later than the call only where it is told so and the host's
/// memory is pinned, but for what goes to a device from memory that is not: that is read at once.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool non_blocking) {
  const bool crosses = self.device() != to.device();
  if (crosses && g_copies_to_failure >= 0) TORCH_CHECK(g_copies_to_failure-- != 0, "simulated device: a copy failed");
  const c10::Device device = is_simulated(self) ? self.device() : to.device();
  const bool two_devices = crosses && is_simulated(self) && is_simulated(to);
  Streams& streams = Streams::instance();
  const c10::Stream stream = current_simulated_stream(device);
  if (two_devices) streams.let_wait(stream, streams.last(current_simulated_stream(to.device())));
  at::Tensor source = as_cpu(self);
  if (self.is_cpu() && !host_is_pinned(self)) {
    const KernelScope kernel;
    const at::AutoDispatchBelowADInplaceOrView below;
    source = self.clone();
  }
  const double seconds = crosses ? g_speed.copy_latency + static_cast<double>(to.nbytes()) / g_speed.bytes_per_second
                                 : g_speed.kernel_seconds;
  const auto copy = [source, target = as_cpu(to)] {
    const KernelScope kernel;
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below;
    at::Tensor(target).copy_(source);
  };
  const Ticket copied = streams.put(stream, copy, seconds);
  if (two_devices) {
    streams.let_wait(current_simulated_stream(to.device()), copied);
  } else if (crosses && (!non_blocking || (to.is_cpu() && !host_is_pinned(to)))) {
    streams.wait_for(copied);
  }
  return to;
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  const at::Tensor shape = at::empty(sizes, self.options().device(at::kMeta).memory_format(format));
  c10::StorageImpl* const storage = self.storage().unsafeGetStorageImpl();
  const std::size_t bytes = static_cast<std::size_t>(self.storage_offset()) * self.itemsize() + shape.nbytes();
  if (bytes > storage->nbytes()) {
    const c10::DeviceGuard on(self.device());
    Streams::instance().catch_up(current_simulated_stream(self.device()));
    c10::DataPtr fresh = c10::GetAllocator(kSimulated)->allocate(bytes);
    if (storage->nbytes() > 0) std::memcpy(fresh.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(fresh));
    storage->set_nbytes(bytes);
  }
  self.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides());
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, std::int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  TORCH_CHECK(self.device() == storage.device(), "simulated device: a tensor of ", self.device(),
              " is given a storage of ", storage.device());
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

/// The CPU's looks at whether a mask is differentiated, which it cannot see of what stands for it.
std::int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                              std::optional<double> scale, bool grouped) {
  if (mask && mask->requires_grad()) return static_cast<std::int64_t>(at::SDPBackend::math);
  return at::_fused_sdp_choice(as_cpu(query), as_cpu(key), as_cpu(value),
                               mask ? std::optional(as_cpu(*mask)) : std::nullopt, dropout, is_causal, scale, grouped);
}

/// The CPU has none of integers, and accelerators have.
at::Tensor histogram(const at::Tensor& x, std::int64_t bins, const at::Scalar& least, const at::Scalar& most) {
  const auto compute = [=, x = as_cpu(x)] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return std::vector{at::histc(x.to(at::kDouble), bins, least, most).to(x.scalar_type())};
  };
  return launch(x.device(), compute)[0];
}

/// The CPU's draws from the CPU's generator, as it is told none.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& x, double probability, std::optional<bool> train) {
  if (!train.value_or(true) || probability == 0) return {x.clone(), at::ones_like(x, at::kBool)};
  const double kept = 1 - probability;
  at::Tensor mask = at::empty_like(x, at::kBool);
  mask.bernoulli_(kept);
  return {x.mul(mask).mul_(kept == 0 ? 0 : 1 / kept), mask};
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  simulated_supply(self.device().index()).record_stream(self.storage().data_ptr().get_context(), stream);
}

at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups) {
  const auto compute = [=, x = as_cpu(x), w = as_cpu(w), b = bias ? std::optional(as_cpu(*bias)) : std::nullopt,
                        stride = stride.vec(), padding = padding.vec(), dilation = dilation.vec(),
                        output_padding = output_padding.vec()] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return std::vector{at::convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)};
  };
  return launch(x.device(), compute)[0];
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(const at::Tensor& gradient, const at::Tensor& x,
                                                                    const at::Tensor& w, at::IntArrayRef stride,
                                                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                                                    bool transposed, at::IntArrayRef output_padding,
                                                                    std::int64_t groups, std::array<bool, 3> wanted) {
  const auto compute = [=, g = as_cpu(gradient), x = as_cpu(x), w = as_cpu(w), stride = stride.vec(),
                        padding = padding.vec(), dilation = dilation.vec(), output_padding = output_padding.vec()] {
    const at::AutoDispatchBelowADInplaceOrView below;
    const std::vector<std::int64_t> bias{transposed ? w.size(1) * groups : w.size(0)};
    const auto [of_x, of_w, of_bias] =
        at::convolution_backward(g, x, w, bias, stride, padding, dilation, transposed, output_padding, groups, wanted);
    return std::vector{of_x, of_w, of_bias};
  };
  const std::vector<at::Tensor> made = launch(x.device(), compute);
  return {made[0], made[1], made[2]};
}

// Which copies what is conjugated, or negated, itself.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, HPU, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("resize_", &resize);
  library.impl("set_.source_Storage_storage_offset", &set_storage);
  library.impl("set_.source_Storage", &set_whole_storage);
  library.impl("_fused_sdp_choice", &choose_attention);
  library.impl("histc", &histogram);
  library.impl("native_dropout", &native_dropout);
  library.impl("record_stream", &record_stream);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
}

}  // namespace

void set_simulated_speed(const SimulatedSpeed& speed) { g_speed = speed; }
SimulatedSpeed simulated_speed() { return g_speed; }
void fail_copy(std::optional<std::int64_t> after) { g_copies_to_failure = after.value_or(-1); }

}  // namespace snug::testing
