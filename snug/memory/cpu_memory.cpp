#include "snug/memory/cpu_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <pthread.h>

#include <algorithm>
#include <utility>
#include <vector>

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
constexpr std::uint8_t kAllocatorPriority = 200;  // above LibTorch's own and its mobile allocators

static_assert(kHeader == 64);
static_assert(kSmallest <= SmallHeap::kSegment / 2);

/// Pages of a reserved range count nowhere in the kernel before they are filled: a single request that can never be
/// filled would end the process, where the kernel refuses it to LibTorch's own allocator.
std::optional<Bytes> most_of_the_machine() {
  static const std::optional<Bytes> most = memory_and_swap();
  return most;
}

constexpr Bytes round_up(Bytes bytes, Bytes to) { return (bytes + to - 1) / to * to; }

BlockHeader* header_of(void* data) { return reinterpret_cast<BlockHeader*>(static_cast<std::byte*>(data) - kHeader); }

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
  handlers_.lock();
  mutex_.lock();
}

void CpuMemory::unlock_all() {
  mutex_.unlock();
  handlers_.unlock();
}

/// In a child: what another thread has locked, this one may not unlock.
void CpuMemory::renew_locks() {
  new (&mutex_) std::mutex;
  handlers_.renew_lock();
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
  if (bytes > kLargestRequest) refuse(static_cast<Bytes>(kLargestRequest));
  const Bytes block = rounded(static_cast<Bytes>(bytes));
  if (block > most_of_the_machine().value_or(block)) refuse(block);
  const bool small = block <= kSmallest;
  std::byte* memory = nullptr;
  // Once more when nobody could help: another thread may have made room in the meantime.
  for (bool helped = true;; helped = handlers_.ask(shortage(block))) {
    {
      const std::lock_guard lock(mutex_);
      memory = try_take(block, small);
      if (memory != nullptr) {
        auto* header = new (memory) BlockHeader{block, newest_, nullptr, next_allocation_time(), current_tag(), small};
        if (newest_ != nullptr) newest_->newer = header;
        newest_ = header;
        accounts_.take(block, header->tag, mapped());
        break;
      }
    }
    if (!helped) refuse(block);
  }
  std::byte* data = memory + kHeader;
  return {data, data, &CpuMemory::deallocate, cpu};
}

void CpuMemory::deallocate(void* data) {
  if (data != nullptr) instance().free_block(header_of(data));
}

void CpuMemory::free_block(BlockHeader* header) {
  const std::lock_guard lock(mutex_);
  (header->newer != nullptr ? header->newer->older : newest_) = header->older;
  if (header->older != nullptr) header->older->newer = header->newer;
  const Bytes size = header->size;
  accounts_.give(size, header->tag);
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

void CpuMemory::refuse(Bytes bytes) const {
  OutOfBudget::Details details;
  details.requested = bytes;
  details.operation = current_operation();
  details.stats = stats();
  details.machine = most_of_the_machine();
  details.in_step = handlers_.any();
  std::vector<std::pair<Bytes, Tag>> blocks;
  {
    const std::lock_guard lock(mutex_);
    for (const BlockHeader* block = newest_; block != nullptr; block = block->older)
      blocks.emplace_back(block->size, block->tag);
  }
  details.largest = largest_of(std::move(blocks));
  memory::refuse(std::move(details));
}

c10::DeleterFnPtr CpuMemory::raw_deleter() const { return &CpuMemory::deallocate; }

void CpuMemory::copy_data(void* to, const void* from, std::size_t bytes) const { default_copy_data(to, from, bytes); }

Stats CpuMemory::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = accounts_.stats();
  stats.mapped = mapped();
  stats.limit = limit_;
  stats.pressure_calls = handlers_.calls();
  return stats;
}

void CpuMemory::reset_peak() {
  const std::lock_guard lock(mutex_);
  accounts_.reset_peak(mapped());
}

void CpuMemory::set_limit(std::optional<Bytes> limit) {
  const std::lock_guard lock(mutex_);
  limit_pages(limit);
}

/// What was adopted takes its part of the limit.
void CpuMemory::limit_pages(std::optional<Bytes> limit) {
  limit_ = limit;
  pages_.set_limit(limit ? std::optional(std::max<Bytes>(*limit - adopted_, 0)) : std::nullopt);
  if (limit && mapped() > *limit) {
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
  accounts_.retag(size, std::exchange(now, tag), tag);
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
  accounts_.take(block->size, block->tag, mapped());
}

void CpuMemory::free_adopted(void* context) {
  auto* block = static_cast<AdoptedBlock*>(context);
  CpuMemory& memory = instance();
  {
    const std::lock_guard lock(memory.mutex_);
    memory.accounts_.give(block->size, block->tag);
    memory.adopted_ -= block->size;
    memory.limit_pages(memory.limit_);
  }
  delete block;
}

}  // namespace snug::memory
