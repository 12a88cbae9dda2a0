#include "snug/memory/cuda_allocator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/cuda_supply.h"

namespace snug::memory {
namespace {

namespace cca = c10::cuda::CUDACachingAllocator;

c10::DeviceIndex current_device() {
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

}  // namespace

CudaAllocator& CudaAllocator::instance() {
  static CudaAllocator* const allocator = [] {
    auto* const made = new CudaAllocator(*cca::get());
    cca::allocator.store(made);
    c10::SetAllocator(c10::kCUDA, made);
    return made;
  }();
  return *allocator;
}

CudaAllocator& CudaAllocator::installed() {
  CudaAllocator& allocator = instance();
  if (cca::get() != &allocator) {
    throw UsageError("memory: CUDA's allocator is no longer that which snug counts with, but " + cca::get()->name() +
                     "; change it (torch.cuda.memory.change_current_allocator()) before snug is imported");
  }
  return allocator;
}

const CudaAllocator::Memories& CudaAllocator::memories() {
  std::call_once(counted_devices_, [&] {
    for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i) {
      memories_.push_back(std::make_unique<AcceleratorMemory>(c10::Device(c10::kCUDA, i),
                                                              std::make_unique<CudaSupply>(own_, i), &free));
    }
  });
  return memories_;
}

AcceleratorMemory* CudaAllocator::memory(c10::DeviceIndex device) {
  const bool there = device >= 0 && static_cast<std::size_t>(device) < memories().size();
  return there ? memories()[static_cast<std::size_t>(device)].get() : nullptr;
}

c10::DataPtr CudaAllocator::allocate(std::size_t bytes) { return memory(current_device())->allocate(bytes); }

void* CudaAllocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  const c10::cuda::CUDAStreamGuard in(c10::cuda::getStreamFromExternal(stream, current_device()));
  return raw_alloc(bytes);
}

void CudaAllocator::free(void* data) {
  if (data == nullptr) return;
  CudaAllocator& allocator = instance();
  if (std::ranges::none_of(allocator.memories(), [&](const auto& memory) { return memory->freed(data); }))
    allocator.own_.raw_deleter()(data);
}

/// LibTorch's own looks at no blocks but those with its own deleter.
void CudaAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (data.get_deleter() != &free) return own_.recordStream(data, stream);
  c10::DataPtr as_own(data.get(), data.get_context(), own_.raw_deleter(), data.device());
  own_.recordStream(as_own, stream);
  (void)as_own.release_context();
}

}  // namespace snug::memory
