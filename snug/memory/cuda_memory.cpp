// DeviceMemory over LibTorch's caching allocator for CUDA. Compiled against a CUDA build of LibTorch; no file but this
// one includes its headers.
#include "snug/memory/cuda_memory.h"

#include <c10/core/Storage.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace snug::memory {
namespace {

namespace cca = c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::StatType;

constexpr Bytes kGranule = 512;  // the caching allocator rounds requests up to this
constexpr auto kAll = static_cast<std::size_t>(StatType::AGGREGATE);

class CudaMemory;

/// Tells of the device's highest level since the previous take().
class CudaMeter final : public Meter {
 public:
  explicit CudaMeter(CudaMemory& memory);
  ~CudaMeter() override;
  CudaMeter(const CudaMeter&) = delete;
  CudaMeter& operator=(const CudaMeter&) = delete;
  Peak take() override;
  void keep(Bytes bytes) override;
  void reach(Bytes level) { highest_ = std::max(highest_, level + kept_); }

 private:
  CudaMemory& memory_;
  Bytes highest_ = 0, kept_ = 0;
};

class CudaMemory final : public DeviceMemory {
 public:
  explicit CudaMemory(c10::DeviceIndex device) : device_(device) {
    cca::init(c10::cuda::device_count());
    // Called under the allocator's lock; it cannot be taken off again, so the object is never destroyed.
    cca::attachAllocatorTraceTracker([this](const c10::CachingDeviceAllocator::TraceEntry& entry) { track(entry); });
  }

  Stats stats() const override {
    const auto device = cca::getDeviceStats(device_);
    Stats stats;
    stats.allocated = device.allocated_bytes[kAll].current;
    stats.allocated_peak = device.allocated_bytes[kAll].peak;
    stats.mapped = device.reserved_bytes[kAll].current;
    stats.mapped_peak = device.reserved_bytes[kAll].peak;
    stats.limit = limit_;
    const std::lock_guard lock(mutex_);
    stats.by_tag = by_tag_;
    stats.peak_by_tag = peak_by_tag_;
    stats.at_peak_by_tag = at_peak_;
    stats.allocations = allocations_;
    stats.pressure_calls = pressure_calls_;
    return stats;
  }

  void reset_peak() override {
    cca::resetPeakStats(device_);
    const std::lock_guard lock(mutex_);
    peak_by_tag_ = at_peak_ = by_tag_;
    peak_ = current_;
  }

  void set_limit(std::optional<Bytes> limit) override {
    // The allocator takes a fraction of the card; truncation leaves it a few bytes under the limit, never over.
    const auto total = static_cast<double>(cca::get()->getMemoryInfo(device_).second);
    const double fraction = limit ? std::clamp(static_cast<double>(*limit) / total, 0.0, 1.0) : 1.0;
    limit_ = limit;
    cca::setMemoryFraction(fraction, device_);
    if (limit && cca::getDeviceStats(device_).reserved_bytes[kAll].current > *limit) cca::emptyCache();
  }

  void release_cached() override { cca::emptyCache(); }

  MachineMemory capacity() const override {
    const c10::cuda::CUDAGuard on(device_);
    std::size_t available = 0, total = 0;
    if (cudaMemGetInfo(&available, &total) == cudaSuccess)
      return {static_cast<Bytes>(total), static_cast<Bytes>(available)};
    (void)cudaGetLastError();
    return {};
  }

  Bytes rounded(Bytes bytes) const override { return (bytes + kGranule - 1) / kGranule * kGranule; }

  bool allocated_since(const c10::Storage& storage, AllocationTime time) const override {
    if (!storage.device().is_cuda()) return false;
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(address_of(storage));
    return block != blocks_.end() && block->second.born > time;
  }

  void retag(const c10::Storage& storage, Tag tag) override {
    if (!storage.device().is_cuda()) return;
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(address_of(storage));
    if (block == blocks_.end()) return;
    add(block->second.tag, -block->second.size);
    block->second.tag = tag;
    add(tag, block->second.size);
  }

  void add_pressure_handler(PressureHandler* handler) override {
    const std::lock_guard lock(handlers_mutex_);
    handlers_.push_back(handler);
  }
  void remove_pressure_handler(PressureHandler* handler) override {
    const std::lock_guard lock(handlers_mutex_);
    std::erase(handlers_, handler);
  }

  c10::Device device() const override { return {c10::kCUDA, device_}; }
  std::unique_ptr<Meter> meter() override { return std::make_unique<CudaMeter>(*this); }

  /// From the free-memory callback, which runs on every miss of the cache and is told neither size nor device: act only
  /// when the next segment could pass the limit.
  bool make_room() {
    if (!limit_) return false;
    const Bytes reserved = cca::getDeviceStats(device_).reserved_bytes[kAll].current;
    constexpr Bytes kSegment = 20_MiB;  // what the allocator maps for a middle-sized request
    if (reserved + kSegment <= *limit_) return false;
    // try_lock: another thread may hold it while it waits for the allocator, whose lock this thread has.
    const std::unique_lock lock(handlers_mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    ++pressure_calls_;
    return std::ranges::any_of(handlers_, [](PressureHandler* h) { return h->make_room(kSegment, Patience::None); });
  }

 private:
  struct Block {
    Bytes size;
    Tag tag;
    AllocationTime born;
  };
  static std::uintptr_t address_of(const c10::Storage& storage) {
    return reinterpret_cast<std::uintptr_t>(storage.data_ptr().get());
  }

  void add(Tag tag, Bytes bytes) {
    const auto i = static_cast<std::size_t>(tag);
    by_tag_[i] += bytes;
    peak_by_tag_[i] = std::max(peak_by_tag_[i], by_tag_[i]);
  }

  void track(const c10::CachingDeviceAllocator::TraceEntry& entry) {
    using Entry = c10::CachingDeviceAllocator::TraceEntry;
    if (entry.device_ != device_) return;
    const auto address = static_cast<std::uintptr_t>(entry.addr_);
    const std::lock_guard lock(mutex_);
    if (entry.action_ == Entry::ALLOC) {
      const Bytes bytes = rounded(static_cast<Bytes>(entry.size_));
      blocks_[address] = {bytes, current_tag(), next_allocation_time()};
      add(current_tag(), bytes);
      current_ += bytes;
      ++allocations_;
      for (CudaMeter* meter : meters_) meter->reach(current_);
      if (current_ > peak_) {
        peak_ = current_;
        at_peak_ = by_tag_;
      }
    } else if (entry.action_ == Entry::FREE_REQUESTED) {
      const auto block = blocks_.find(address);
      if (block == blocks_.end()) return;
      add(block->second.tag, -block->second.size);
      current_ -= block->second.size;
      blocks_.erase(block);
    }
  }

  friend class CudaMeter;

  c10::DeviceIndex device_;
  std::optional<Bytes> limit_;
  mutable std::mutex mutex_;                          // innermost: nothing of the allocator's is called under it
  std::unordered_map<std::uintptr_t, Block> blocks_;  // by address
  ByTag by_tag_{}, peak_by_tag_{}, at_peak_{};
  Bytes current_ = 0, peak_ = 0;
  std::vector<CudaMeter*> meters_;
  std::int64_t allocations_ = 0, pressure_calls_ = 0;
  std::mutex handlers_mutex_;
  std::vector<PressureHandler*> handlers_;
};

CudaMeter::CudaMeter(CudaMemory& memory) : memory_(memory) {
  const std::lock_guard lock(memory.mutex_);
  highest_ = memory.current_;
  memory.meters_.push_back(this);
}

CudaMeter::~CudaMeter() {
  const std::lock_guard lock(memory_.mutex_);
  std::erase(memory_.meters_, this);
}

Meter::Peak CudaMeter::take() {
  const std::lock_guard lock(memory_.mutex_);
  kept_ = 0;
  const Bytes highest = std::exchange(highest_, memory_.current_);
  return {.allocated = highest, .all_at_once = highest};
}

void CudaMeter::keep(Bytes bytes) {
  const std::lock_guard lock(memory_.mutex_);
  kept_ += bytes;
}

// By device. What the callback may use: it runs under the allocator's lock and must not be the one to make it.
constexpr std::size_t kMostDevices = 64;
std::array<std::atomic<CudaMemory*>, kMostDevices> g_made;

class MakeRoom final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    return std::ranges::any_of(g_made, [](const std::atomic<CudaMemory*>& made) {
      CudaMemory* memory = made.load();
      return memory != nullptr && memory->make_room();
    });
  }
};

}  // namespace

DeviceMemory* cuda_memory(c10::DeviceIndex index) {
  const c10::DeviceIndex count = std::min<c10::DeviceIndex>(c10::cuda::device_count(), kMostDevices);
  if (index < 0 || index >= count) return nullptr;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::atomic<CudaMemory*>& made = g_made[static_cast<std::size_t>(index)];
  if (made == nullptr) made = new CudaMemory(index);
  return made;
}

}  // namespace snug::memory

namespace c10 {
using SnugMakeRoom = snug::memory::MakeRoom;
REGISTER_FREE_MEMORY_CALLBACK(snug_make_room, SnugMakeRoom)
}  // namespace c10
