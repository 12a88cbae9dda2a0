#include "snug/memory/cpu_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <pthread.h>

#include <algorithm>
#include <functional>

#include "snug/memory/out_of_budget.h"

namespace snug::memory {

/// Stands in the 64 bytes before a block's data.
struct alignas(64) BlockHeader {
  Bytes size;  // of the whole block, header included
  BlockHeader* older;
  BlockHeader* newer;
  AllocationTime born;
  Tag tag;
  bool small;
};

namespace {

/// A block of LibTorch's own allocator, from before this one was installed.
struct AdoptedBlock {
  c10::DataPtr original;
  Bytes size;
  Tag tag;
};

constexpr Bytes kHeader = sizeof(BlockHeader);
constexpr Bytes kSmallest = 4_KiB;
constexpr std::size_t kLargest = std::size_t{1} << 62;  // rounding and sums stay within 63 bits
constexpr std::size_t kLargestListed = 5;
constexpr std::uint8_t kAllocatorPriority = 200;  // above LibTorch's own and its mobile allocators

static_assert(kHeader == 64);
static_assert(kSmallest <= SmallHeap::kSegment / 2);

constexpr Bytes round_up(Bytes bytes, Bytes to) { return (bytes + to - 1) / to * to; }

BlockHeader* header_of(void* data) { return reinterpret_cast<BlockHeader*>(static_cast<std::byte*>(data) - kHeader); }

std::size_t index(Tag tag) { return static_cast<std::size_t>(tag); }

// Installed when the library is loaded, so that weights made before the first use of snug count too.
[[maybe_unused]] const bool kInstalled = (CpuMemory::instance(), true);

}  // namespace

CpuMemory& CpuMemory::instance() {
  static CpuMemory* memory = [] {
    auto* made = new CpuMemory;
    c10::SetCPUAllocator(made, kAllocatorPriority);
    // A child has only the thread that forked: no other may be inside then.
    ::pthread_atfork([] { instance().lock_all(); }, [] { instance().unlock_all(); },
                     [] {
                       instance().renew_locks();
                       // It was made for the training that goes on in the parent; a child loads its data.
                       instance().set_limit(std::nullopt);
                     });
    return made;
  }();
  return *memory;
}

void CpuMemory::lock_all() {
  handlers_mutex_.lock();
  mutex_.lock();
}

void CpuMemory::unlock_all() {
  mutex_.unlock();
  handlers_mutex_.unlock();
}

/// In a child: what another thread has locked, this one may not unlock.
void CpuMemory::renew_locks() {
  new (&mutex_) std::mutex;
  new (&handlers_mutex_) std::shared_mutex;
}

Bytes CpuMemory::rounded(Bytes bytes) const {
  if (bytes == 0) return 0;
  const Bytes whole = bytes + kHeader;
  return whole <= kSmallest ? round_up(whole, SmallHeap::kGranule) : round_up(whole, PageHeap::kPage);
}

std::byte* CpuMemory::try_take(Bytes block, bool small) {
  std::byte* memory = small ? small_.take(block) : pages_.take(block);
  if (memory == nullptr) {
    small_.release_empty();
    memory = small ? small_.take(block) : pages_.take(block);
  }
  return memory;
}

c10::DataPtr CpuMemory::allocate(std::size_t bytes) {
  const c10::Device cpu(c10::kCPU);
  if (bytes == 0) return {nullptr, nullptr, &CpuMemory::deallocate, cpu};
  if (bytes > kLargest) refuse(static_cast<Bytes>(kLargest));
  const Bytes block = rounded(static_cast<Bytes>(bytes));
  const bool small = block <= kSmallest;
  std::byte* memory = nullptr;
  // Once more when nobody could help: another thread may have made room in the meantime.
  for (bool helped = true;; helped = ask_for_room(shortage(block))) {
    {
      const std::lock_guard lock(mutex_);
      memory = try_take(block, small);
      if (memory != nullptr) {
        auto* header = new (memory) BlockHeader{block, newest_, nullptr, next_allocation_time(), current_tag(), small};
        if (newest_ != nullptr) newest_->newer = header;
        newest_ = header;
        ++stats_.allocations;
        count(block, header->tag);
        break;
      }
    }
    if (!helped) refuse(block);
  }
  std::byte* data = memory + kHeader;
  return {data, data, &CpuMemory::deallocate, cpu};
}

void CpuMemory::count(Bytes size, Tag tag) {
  stats_.allocated += size;
  const std::size_t i = index(tag);
  stats_.by_tag[i] += size;
  stats_.peak_by_tag[i] = std::max(stats_.peak_by_tag[i], stats_.by_tag[i]);
  measure(size);
  if (stats_.allocated > stats_.allocated_peak) {
    stats_.allocated_peak = stats_.allocated;
    stats_.at_peak_by_tag = stats_.by_tag;
  }
  stats_.mapped_peak = std::max(stats_.mapped_peak, pages_.mapped() + adopted_);
}

void CpuMemory::deallocate(void* data) {
  if (data != nullptr) instance().free_block(header_of(data));
}

void CpuMemory::free_block(BlockHeader* header) {
  const std::lock_guard lock(mutex_);
  (header->newer != nullptr ? header->newer->older : newest_) = header->older;
  if (header->older != nullptr) header->older->newer = header->newer;
  const Bytes size = header->size;
  stats_.allocated -= size;
  measure(-size);
  stats_.by_tag[index(header->tag)] -= size;
  auto* memory = reinterpret_cast<std::byte*>(header);
  if (header->small) {
    small_.give(memory, size);
  } else {
    pages_.give(memory, size);
  }
}

Bytes CpuMemory::shortage(Bytes bytes) const {
  const std::lock_guard lock(mutex_);
  const std::optional<Bytes> limit = pages_.limit();
  // Cached pages are as good as free ones.
  return limit ? std::max(Bytes{1}, bytes - std::max<Bytes>(*limit - pages_.taken(), 0)) : bytes;
}

bool CpuMemory::ask_for_room(Bytes bytes) {
  // Shared, so that an allocation inside a handler's frees cannot deadlock; unregistering takes it exclusively.
  const std::shared_lock lock(handlers_mutex_);
  for (const Patience patience : {Patience::None, Patience::AMoment}) {
    for (PressureHandler* handler : handlers_) {
      {
        const std::lock_guard stats_lock(mutex_);
        stats_.pressure_calls += patience == Patience::None ? 1 : 0;
      }
      if (handler->make_room(bytes, patience)) return true;
    }
  }
  return false;
}

void CpuMemory::refuse(Bytes bytes) const {
  OutOfBudget::Details details;
  details.requested = bytes;
  details.operation = current_operation();
  details.stats = stats();
  {
    const std::lock_guard lock(mutex_);
    for (const BlockHeader* block = newest_; block != nullptr; block = block->older) {
      details.largest.emplace_back(block->size, block->tag);
    }
  }
  const auto kept = std::min(kLargestListed, details.largest.size());
  std::partial_sort(details.largest.begin(), details.largest.begin() + static_cast<std::ptrdiff_t>(kept),
                    details.largest.end(), std::greater<>());
  details.largest.resize(kept);
  memory::refuse(std::move(details));
}

c10::DeleterFnPtr CpuMemory::raw_deleter() const { return &CpuMemory::deallocate; }

void CpuMemory::copy_data(void* to, const void* from, std::size_t bytes) const { default_copy_data(to, from, bytes); }

Stats CpuMemory::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.mapped = pages_.mapped() + adopted_;
  stats.limit = limit_;
  return stats;
}

void CpuMemory::reset_peak() {
  const std::lock_guard lock(mutex_);
  stats_.allocated_peak = stats_.allocated;
  stats_.mapped_peak = pages_.mapped() + adopted_;
  stats_.peak_by_tag = stats_.at_peak_by_tag = stats_.by_tag;
}

void CpuMemory::set_limit(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  limit_pages(limit);
}

/// What was adopted takes its part of the limit.
void CpuMemory::limit_pages(std::optional<Bytes> limit) {
  limit_ = limit;
  pages_.set_limit(limit ? std::optional(std::max<Bytes>(*limit - adopted_, 0)) : std::nullopt);
  if (limit && pages_.mapped() + adopted_ > *limit) {
    small_.release_empty();
    pages_.release_cached();
  }
}

void CpuMemory::release_cached() {
  const std::lock_guard lock(mutex_);
  small_.release_empty();
  pages_.release_cached();
}

bool CpuMemory::allocated_since(const c10::Storage& storage, AllocationTime time) const {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_context() == nullptr || data.get_deleter() != &CpuMemory::deallocate) return false;
  return header_of(data.get_context())->born > time;
}

void CpuMemory::retag(const c10::Storage& storage, Tag tag) {
  const c10::DataPtr& data = storage.data_ptr();
  if (data.get_context() == nullptr) return;
  const bool adopted = data.get_deleter() == &CpuMemory::free_adopted;
  if (data.get_deleter() != &CpuMemory::deallocate && !adopted) return;
  auto* block = static_cast<AdoptedBlock*>(adopted ? data.get_context() : nullptr);
  BlockHeader* header = adopted ? nullptr : header_of(data.get_context());
  Tag& now = adopted ? block->tag : header->tag;
  const Bytes size = adopted ? block->size : header->size;
  const std::lock_guard lock(mutex_);
  if (now == tag) return;
  stats_.by_tag[index(now)] -= size;
  now = tag;
  stats_.by_tag[index(tag)] += size;
  stats_.peak_by_tag[index(tag)] = std::max(stats_.peak_by_tag[index(tag)], stats_.by_tag[index(tag)]);
}

void CpuMemory::adopt(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  const bool foreign = data.get_context() != nullptr && storage.device().is_cpu() &&
                       data.get_deleter() == c10::GetDefaultCPUAllocator()->raw_deleter();
  if (!foreign) return;
  auto* block = new AdoptedBlock{{}, round_up(static_cast<Bytes>(storage.nbytes()), SmallHeap::kGranule), Tag::Weights};
  void* const memory = data.get();
  block->original = storage.unsafeGetStorageImpl()->set_data_ptr({memory, block, &free_adopted, storage.device()});
  const std::lock_guard lock(mutex_);
  adopted_ += block->size;
  limit_pages(limit_);
  count(block->size, block->tag);
}

void CpuMemory::free_adopted(void* context) {
  auto* block = static_cast<AdoptedBlock*>(context);
  CpuMemory& memory = instance();
  {
    const std::lock_guard lock(memory.mutex_);
    memory.stats_.allocated -= block->size;
    memory.measure(-block->size);
    memory.stats_.by_tag[index(block->tag)] -= block->size;
    memory.adopted_ -= block->size;
    memory.limit_pages(memory.limit_);
  }
  delete block;
}

void CpuMemory::add_pressure_handler(PressureHandler* handler) {
  const std::unique_lock lock(handlers_mutex_);
  handlers_.push_back(handler);
}

void CpuMemory::remove_pressure_handler(PressureHandler* handler) {
  const std::unique_lock lock(handlers_mutex_);
  std::erase(handlers_, handler);
}

class CpuMemory::HighWaterMeter final : public Meter {
 public:
  explicit HighWaterMeter(CpuMemory& memory) : memory_(memory) {
    const std::lock_guard lock(memory.mutex_);
    high_water_.emplace(memory.stats_.allocated);
    memory.meters_.push_back(&*high_water_);
  }
  ~HighWaterMeter() override {
    const std::lock_guard lock(memory_.mutex_);
    std::erase(memory_.meters_, &*high_water_);
  }
  HighWaterMeter(const HighWaterMeter&) = delete;
  HighWaterMeter& operator=(const HighWaterMeter&) = delete;

  Peak take() override {
    const std::lock_guard lock(memory_.mutex_);
    return high_water_->take(memory_.stats_.allocated);
  }
  void keep(Bytes bytes) override {
    const std::lock_guard lock(memory_.mutex_);
    high_water_->change(bytes);
  }

 private:
  CpuMemory& memory_;
  std::optional<HighWater> high_water_;
};

std::unique_ptr<Meter> CpuMemory::meter() { return std::make_unique<HighWaterMeter>(*this); }

void CpuMemory::measure(Bytes change) {
  for (HighWater* meter : meters_) meter->change(change);
}

}  // namespace snug::memory
