#include "snug/memory/cuda_supply.h"

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>

namespace snug::memory {
namespace {

constexpr Bytes kGranule = 512;  // LibTorch rounds requests up to this
constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

void let_segments_expand() {
  static const bool once = [] {
    const bool has_own =
        std::getenv("PYTORCH_ALLOC_CONF") != nullptr || std::getenv("PYTORCH_CUDA_ALLOC_CONF") != nullptr;
    if (!has_own) c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace

c10::DataPtr CudaSupply::take(std::size_t bytes) {
  const c10::cuda::CUDAGuard on(device_);
  return allocator_.allocate(bytes);
}

void CudaSupply::give(void* data) noexcept { allocator_.raw_deleter()(data); }

Bytes CudaSupply::rounded(Bytes bytes) const { return (bytes + kGranule - 1) / kGranule * kGranule; }

Bytes CudaSupply::reserved() const {
  return allocator_.initialized() ? allocator_.getDeviceStats(device_).reserved_bytes[kAll].current : 0;
}

void CudaSupply::limit_reserved(std::optional<Bytes> limit) {
  const c10::cuda::CUDAGuard on(device_);  // what follows leaves its device as the current one
  if (limit) let_segments_expand();
  allocator_.init(c10::cuda::device_count());
  if (!limit && !fraction_before_) return;
  if (!fraction_before_) fraction_before_ = allocator_.getMemoryFraction(device_);
  // It takes a share of the card; truncation leaves it a few bytes under the limit, never over.
  const auto total = static_cast<double>(allocator_.getMemoryInfo(device_).second);
  allocator_.setMemoryFraction(limit ? std::clamp(static_cast<double>(*limit) / total, 0.0, 1.0) : *fraction_before_,
                               device_);
  if (!limit) fraction_before_.reset();
}

void CudaSupply::release_cached() { allocator_.emptyCache(); }

MachineMemory CudaSupply::capacity() const {
  const c10::cuda::CUDAGuard on(device_);
  std::size_t available = 0, total = 0;
  if (cudaMemGetInfo(&available, &total) == cudaSuccess)
    return {static_cast<Bytes>(total), static_cast<Bytes>(available)};
  (void)cudaGetLastError();
  return {};
}

std::string CudaSupply::model() const {
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, device_) == cudaSuccess) return properties.name;
  (void)cudaGetLastError();
  return {};
}

bool CudaSupply::has_given(const c10::DataPtr& data) const {
  return data.get_deleter() == allocator_.raw_deleter() && data.get_context() == data.get();
}

}  // namespace snug::memory
