#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>

#include "snug/memory/accelerator_memory.h"

namespace snug::memory {

/// The blocks of LibTorch's caching allocator, on one device, whichever is the calling thread's. Any thread.
class CudaSupply final : public Supply {
 public:
  /// `allocator`: LibTorch's own. It must outlive this.
  CudaSupply(c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator, c10::DeviceIndex device)
      : allocator_(allocator), device_(device) {}

  c10::DataPtr take(std::size_t bytes) override;
  void give(void* data) noexcept override;
  /// What LibTorch splits its segments by. It may hand out a rest of one with the block, which counts as reserved.
  [[nodiscard]] Bytes rounded(Bytes bytes) const override;
  [[nodiscard]] Bytes reserved() const override;
  /// The first time segments become expandable, so that free memory between blocks serves larger ones, unless the user
  /// has settings of their own (PYTORCH_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF).
  void limit_reserved(std::optional<Bytes> limit) override;
  void release_cached() override;
  [[nodiscard]] MachineMemory capacity() const override;
  [[nodiscard]] std::string model() const override;
  [[nodiscard]] bool must_serve() const override { return pools_ > 0; }
  [[nodiscard]] bool has_given(const c10::DataPtr& data) const override;

  /// A pool of somebody's own takes what is allocated from now on, or no longer.
  void pool_begins() { ++pools_; }
  void pool_ends() {
    for (int pools = pools_; pools > 0 && !pools_.compare_exchange_weak(pools, pools - 1);) {
    }  // one that began before this was there ends too
  }

 private:
  c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator_;
  const c10::DeviceIndex device_;
  std::atomic<int> pools_ = 0;             // that take what is allocated
  std::optional<double> fraction_before_;  // of the card, somebody's own, while there is a limit
};

}  // namespace snug::memory
