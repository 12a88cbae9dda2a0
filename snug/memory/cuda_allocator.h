#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/memory/accelerator_memory.h"

// What LibTorch 2.13 asks an allocator beyond 2.11.
#define SNUG_CUDA_ALLOCATOR_OF_2_13 (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13)

namespace snug::memory {

/// LibTorch's allocator for CUDA with an AcceleratorMemory for each device in front of its blocks: LibTorch goes on to
/// hand out, cache and order them by stream, and each is counted first. All else is LibTorch's. What it has handed out
/// before goes back to it uncounted, and so do blocks of pools at chosen addresses. Any thread.
class CudaAllocator final : public c10::cuda::CUDACachingAllocator::CUDAAllocator {
 public:
  /// In front of LibTorch's own, from the first call to the end of the process. Starts nothing on a GPU, so that
  /// processes may fork after it. Throws UsageError when another has been put in front of it since.
  static CudaAllocator& installed();

  /// nullptr: the machine has no such device.
  AcceleratorMemory* memory(c10::DeviceIndex device);

  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return &CudaAllocator::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { own_.copy_data(to, from, bytes); }

  void* raw_alloc(std::size_t bytes) override { return allocate(bytes).release_context(); }
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* data) override { free(data); }
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override;
  using CUDAAllocator::recordStream;

  // What follows is LibTorch's own alone.
  using Index = c10::DeviceIndex;
  using Pool = c10::MempoolId_t;
  bool initialized() override { return own_.initialized(); }
  void emptyCache(Pool pool) override { own_.emptyCache(pool); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(Index device) override { return own_.getDeviceStats(device); }
  void resetAccumulatedStats(Index device) override { own_.resetAccumulatedStats(device); }
  void resetPeakStats(Index device) override { own_.resetPeakStats(device); }
  std::pair<std::size_t, std::size_t> getMemoryInfo(Index device) override { return own_.getMemoryInfo(device); }
  void init(int devices) override { own_.init(devices); }
  double getMemoryFraction(Index device) override { return own_.getMemoryFraction(device); }
  void setMemoryFraction(double share, Index device) override { own_.setMemoryFraction(share, device); }
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize> getExpandableSegmentSizes(Index device) override {
    return own_.getExpandableSegmentSizes(device);
  }
  void enable(bool caches) override { own_.enable(caches); }
  bool isEnabled() const override { return own_.isEnabled(); }
  void cacheInfo(Index device, std::size_t* largest) override { own_.cacheInfo(device, largest); }
  void* getBaseAllocation(void* data, std::size_t* bytes) override { return own_.getBaseAllocation(data, bytes); }
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(Pool pool, bool traces) override {
    return own_.snapshot(pool, traces);
  }
  void beginAllocateToPool(Index device, Pool pool, std::function<bool(cudaStream_t)> filter) override {
    own_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(Index device, Pool pool) override { own_.endAllocateToPool(device, pool); }
  void releasePool(Index device, Pool pool) override { own_.releasePool(device, pool); }
  int getPoolUseCount(Index device, Pool pool) override { return own_.getPoolUseCount(device, pool); }
  void createOrIncrefPool(Index device, Pool pool, std::shared_ptr<CUDAAllocator> allocator) override {
    own_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(Index device, Pool pool, bool use) override { own_.setUseOnOOM(device, pool, use); }
  void setNoSplit(Index device, Pool pool) override { own_.setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(Index device, Pool pool, const std::unordered_set<void*>& expected) override {
    return own_.checkPoolLiveAllocations(device, pool, expected);
  }
  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void* data) override {
    return own_.shareIpcHandle(data);
  }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return own_.getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return own_.isHistoryEnabled(); }
  void recordHistory(bool enabled, c10::CachingDeviceAllocator::CreateContextFn context, std::size_t most,
                     c10::CachingDeviceAllocator::RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    own_.recordHistory(enabled, context, most, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override {
    own_.recordAnnotation(pairs);
  }
  void pushCompileContext(std::string& what) override { own_.pushCompileContext(what); }
  void popCompileContext() override { own_.popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { own_.setUserMetadata(metadata); }
  std::string getUserMetadata() override { return own_.getUserMetadata(); }
  void attachOutOfMemoryObserver(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override {
    own_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(c10::CachingDeviceAllocator::AllocatorTraceTracker tracker) override {
    own_.attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(Index device, Index to) override { own_.enablePeerAccess(device, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool peers) override {
    return own_.memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> getCheckpointState(Index device,
                                                                                      Pool pool) override {
    return own_.getCheckpointState(device, pool);
  }
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      Index device, std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state) override {
    return own_.setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return own_.name(); }
#if SNUG_CUDA_ALLOCATOR_OF_2_13
  void markCaptureBegin(Index device) override { own_.markCaptureBegin(device); }
  void markCaptureEnd(Index device) override { own_.markCaptureEnd(device); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* data) override {
    return own_.getContextForPointer(data);
  }
  void attachOomRejectionObserver(c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) override {
    own_.attachOomRejectionObserver(std::move(observer));
  }
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override {
    return own_.allocateWithAddress(bytes, address);
  }
#endif

 private:
  using Memories = std::vector<std::unique_ptr<AcceleratorMemory>>;
  explicit CudaAllocator(CUDAAllocator& own) : own_(own) {}
  /// One object until the process ends, as blocks outlive everything else.
  static CudaAllocator& instance();
  static void free(void* data);
  const Memories& memories();

  CUDAAllocator& own_;
  std::once_flag counted_devices_;
  Memories memories_;  // by device
};

}  // namespace snug::memory
