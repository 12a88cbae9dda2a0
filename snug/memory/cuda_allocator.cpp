#include "snug/memory/cuda_allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/cuda_supply.h"

// What LibTorch 2.13 asks an allocator beyond 2.11.
#define SNUG_CUDA_ALLOCATOR_OF_2_13 (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13)

namespace snug::memory {
namespace {

namespace cca = c10::cuda::CUDACachingAllocator;

class CudaAllocator final : public cca::CUDAAllocator {
 public:
  /// One object until the process ends, as blocks outlive everything else.
  static CudaAllocator& instance();

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
  std::vector<cca::StreamSegmentSize> getExpandableSegmentSizes(Index device) override {
    return own_.getExpandableSegmentSizes(device);
  }
  void enable(bool caches) override { own_.enable(caches); }
  bool isEnabled() const override { return own_.isEnabled(); }
  void cacheInfo(Index device, std::size_t* largest) override { own_.cacheInfo(device, largest); }
  void* getBaseAllocation(void* data, std::size_t* bytes) override { return own_.getBaseAllocation(data, bytes); }
  cca::SnapshotInfo snapshot(Pool pool, bool traces) override { return own_.snapshot(pool, traces); }
  void beginAllocateToPool(Index device, Pool pool, std::function<bool(cudaStream_t)> filter) override {
    own_.beginAllocateToPool(device, pool, std::move(filter));
    supply(device).pool_begins();
  }
  void endAllocateToPool(Index device, Pool pool) override {
    own_.endAllocateToPool(device, pool);
    supply(device).pool_ends();
  }
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
  cca::ShareableHandle shareIpcHandle(void* data) override { return own_.shareIpcHandle(data); }
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
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 14
  bool supportsUserMetadata() override { return own_.supportsUserMetadata(); }
  void annotateMemory(const void* data, const std::string& what) override { own_.annotateMemory(data, what); }
#endif
  void attachOutOfMemoryObserver(cca::OutOfMemoryObserver observer) override {
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
  std::shared_ptr<cca::AllocatorState> getCheckpointState(Index device, Pool pool) override {
    return own_.getCheckpointState(device, pool);
  }
  cca::CheckpointDelta setCheckpointPoolState(Index device, std::shared_ptr<cca::AllocatorState> state) override {
    return own_.setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return own_.name(); }
#if SNUG_CUDA_ALLOCATOR_OF_2_13
  void markCaptureBegin(Index device) override { own_.markCaptureBegin(device); }
  void markCaptureEnd(Index device) override { own_.markCaptureEnd(device); }
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* data) override {
    return own_.getContextForPointer(data);
  }
  void attachOomRejectionObserver(cca::OomRejectionObserver observer) override {
    own_.attachOomRejectionObserver(std::move(observer));
  }
  c10::DataPtr allocateWithAddress(std::size_t bytes, void* address) override {
    return own_.allocateWithAddress(bytes, address);
  }
#endif

 private:
  using Memories = std::vector<std::unique_ptr<AcceleratorMemory>>;
  explicit CudaAllocator(CUDAAllocator& own) : own_(own) {}
  static void free(void* data);
  const Memories& memories();
  CudaSupply& supply(Index device) {
    (void)memories();
    return *supplies_.at(static_cast<std::size_t>(device));
  }

  CUDAAllocator& own_;
  std::once_flag counted_devices_;
  Memories memories_;                    // by device
  std::vector<CudaSupply*> supplies_{};  // of those
};

c10::DeviceIndex current_device() {
  c10::DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  return device;
}

CudaAllocator& CudaAllocator::instance() {
  static CudaAllocator* const allocator = [] {
    auto* const made = new CudaAllocator(*cca::get());
    cca::allocator.store(made);
    c10::SetAllocator(c10::kCUDA, made);
    return made;
  }();
  return *allocator;
}

const CudaAllocator::Memories& CudaAllocator::memories() {
  std::call_once(counted_devices_, [&] {
    for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i) {
      auto supply = std::make_unique<CudaSupply>(own_, i);
      supplies_.push_back(supply.get());
      memories_.push_back(std::make_unique<AcceleratorMemory>(c10::Device(c10::kCUDA, i), std::move(supply), &free));
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
  if (AcceleratorMemory* const of = memory(data.device().index());
      of != nullptr && of->record_stream(data.get_context(), stream))
    return;
  c10::DataPtr as_own(data.get(), data.get_context(), own_.raw_deleter(), data.device());
  own_.recordStream(as_own, stream);
  (void)as_own.release_context();
}

}  // namespace

void install_cuda_allocator() { (void)CudaAllocator::instance(); }

AcceleratorMemory* counted_cuda_memory(c10::DeviceIndex device) {
  CudaAllocator& allocator = CudaAllocator::instance();
  if (cca::get() == &allocator) return allocator.memory(device);
  throw UsageError("memory: CUDA's allocator is no longer that which snug counts with, but " + cca::get()->name() +
                   "; change it (torch.cuda.memory.change_current_allocator()) before snug is imported");
}

}  // namespace snug::memory
