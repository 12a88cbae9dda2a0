#include "tests/device/launch.h"

#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "snug/memory/cpu_memory.h"
#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

thread_local bool t_in_kernel = false;

/// In front of the CPU's allocator.
class ScratchAllocator final : public at::Allocator {
 public:
  static ScratchAllocator& instance() {
    static auto* const allocator = new ScratchAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(std::size_t bytes) override {
    if (!t_in_kernel) return behind_.allocate(bytes);
    if (bytes == 0) return {nullptr, nullptr, &ScratchAllocator::free, c10::Device(c10::kCPU)};
    void* const data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
    const std::lock_guard lock(mutex_);
    scratch_.insert(data);
    return {data, data, &ScratchAllocator::free, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &ScratchAllocator::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  ScratchAllocator() = default;
  /// Of either, as some libraries are told an address alone.
  static void free(void* data) {
    ScratchAllocator& allocator = instance();
    {
      const std::lock_guard lock(allocator.mutex_);
      if (allocator.scratch_.erase(data) > 0) return std::free(data);
    }
    allocator.behind_.raw_deleter()(data);
  }

  // By name: which of them is in place before main() begins depends on the order of initialization.
  at::Allocator& behind_ = memory::CpuMemory::instance();
  std::mutex mutex_;
  std::unordered_set<void*> scratch_;
};

}  // namespace

KernelScope::KernelScope() : before_(std::exchange(t_in_kernel, true)) {}
KernelScope::~KernelScope() { t_in_kernel = before_; }

void install_scratch_allocator() { c10::SetCPUAllocator(&ScratchAllocator::instance(), /*priority=*/201); }

at::Tensor as_cpu(const at::Tensor& simulated) {
  if (!simulated.defined() || simulated.device().type() != kSimulated) return simulated;
  const c10::Storage& of = simulated.storage();
  c10::Storage storage(c10::Storage::use_byte_size_t(), of.nbytes(), c10::DataPtr(of.mutable_data(), c10::kCPU),
                       c10::GetCPUAllocator(), /*resizable=*/true);
  at::Tensor cpu = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), simulated.dtype());
  cpu.unsafeGetTensorImpl()->set_storage_offset(simulated.storage_offset());
  cpu.unsafeGetTensorImpl()->set_sizes_and_strides(simulated.sizes(), simulated.strides());
  if (simulated.is_conj()) cpu._set_conj(true);
  if (simulated.is_neg()) cpu._set_neg(true);
  return cpu;
}

at::Tensor empty_as(const at::Tensor& cpu, c10::Device device) {
  const c10::DeviceGuard on(device);
  const auto& simulated = c10::GetAllocator(kSimulated);
  at::Tensor made = at::detail::empty_strided_generic(cpu.sizes(), cpu.strides(), simulated,
                                                      c10::DispatchKeySet(c10::DispatchKey::HPU), cpu.scalar_type());
  if (cpu.is_conj()) made._set_conj(true);
  if (cpu.is_neg()) made._set_neg(true);
  return made;
}

std::vector<at::Tensor> launch(c10::Device device, const std::function<std::vector<at::Tensor>()>& compute) {
  Streams& streams = Streams::instance();
  const c10::Stream stream = current_simulated_stream(device);
  streams.catch_up(stream);
  std::vector<at::Tensor> found;
  {
    const KernelScope kernel;
    found = compute();
  }
  std::vector<at::Tensor> made, places;
  for (const at::Tensor& t : found) {
    made.push_back(t.defined() ? empty_as(t, device) : t);
    places.push_back(as_cpu(made.back()));
  }
  const bool again = streams.in_order_of_chance();
  const auto finish = [places, compute, again, first = again ? std::vector<at::Tensor>() : std::move(found)] {
    const KernelScope kernel;
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below;
    const std::vector<at::Tensor> results = again ? compute() : first;
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i].defined()) at::Tensor(places[i]).copy_(results[i]);
    }
  };
  streams.put(stream, finish, simulated_speed().kernel_seconds);
  return made;
}

}  // namespace snug::testing
