#include "snug/memory/accelerator_memory.h"

#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "snug/memory/out_of_budget.h"

namespace snug::memory {

AcceleratorMemory::AcceleratorMemory(c10::Device device, std::unique_ptr<Supply> supply, c10::DeleterFnPtr free)
    : device_(device), supply_(std::move(supply)), free_(free) {}

c10::DataPtr AcceleratorMemory::allocate(std::size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, free_, device_};
  if (bytes > kLargestRequest) refuse(static_cast<Bytes>(kLargestRequest));
  const Bytes block = rounded(static_cast<Bytes>(bytes));
  bool kept_any = true;  // by the supply, as far as is known
  const std::shared_ptr<Arena> arena = supply_->must_serve() ? nullptr : this->arena();
  Arena::Request request = arena ? arena->ask(block) : Arena::Request();
  // Once more when nobody could help: another thread may have made room in the meantime.
  for (bool helped = true;;) {
    Bytes missing = promise(block);
    if (missing == 0) {
      try {
        const Taken taken = take(bytes, arena, request);
        hand_out(taken, block);
        return {taken.data, taken.data, free_, device_};
      } catch (const c10::OutOfMemoryError&) {
        take_back_promise(block);
        if (!limited() && !handlers_.any()) throw;  // nobody has asked for anything but LibTorch's own answer
        if (std::exchange(kept_any, false)) {
          supply_->release_cached();
          continue;
        }
        missing = block;
      } catch (...) {
        take_back_promise(block);
        throw;
      }
    }
    if (!helped) refuse(block);
    helped = handlers_.ask(missing);
    kept_any = true;
  }
}

/// In the arena, at its place; else of the supply; else in the arena, wherever there is room.
AcceleratorMemory::Taken AcceleratorMemory::take(std::size_t bytes, const std::shared_ptr<Arena>& arena,
                                                 Arena::Request& request) {
  if (!arena) return {supply_->take(bytes).release_context(), nullptr};
  if (void* const data = arena->take(request)) return {data, arena};
  try {
    void* const data = supply_->take(bytes).release_context();
    arena->lies_at(request, data);
    return {data, nullptr};
  } catch (const c10::OutOfMemoryError&) {
    if (void* const data = arena->take_any(request)) return {data, arena};
    throw;
  }
}

std::shared_ptr<Arena> AcceleratorMemory::arena() const {
  const std::lock_guard lock(mutex_);
  return arena_.lock();
}

void AcceleratorMemory::use(const std::shared_ptr<Arena>& arena) {
  const std::lock_guard lock(mutex_);
  arena_ = arena;
}

bool AcceleratorMemory::record_stream(const void* data, c10::Stream stream) {
  std::shared_ptr<Arena> arena;
  {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    if (block != blocks_.end()) arena = block->second.arena;
  }
  return arena && arena->record_stream(data, stream);
}

bool AcceleratorMemory::limited() const {
  const std::lock_guard lock(mutex_);
  return limit_.has_value();
}

Bytes AcceleratorMemory::promise(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  const Bytes with = accounts_.stats().allocated + promised_ + bytes;
  if (limit_ && with > *limit_) return with - *limit_;
  promised_ += bytes;
  return 0;
}

void AcceleratorMemory::take_back_promise(Bytes bytes) {
  const std::lock_guard lock(mutex_);
  promised_ -= bytes;
}

void AcceleratorMemory::hand_out(Taken taken, Bytes promised) {
  const Bytes reserved = supply_->reserved();
  const Tag tag = current_tag();
  const std::lock_guard lock(mutex_);
  blocks_.insert_or_assign(taken.data, Block{promised, tag, next_allocation_time(), std::move(taken.arena)});
  promised_ -= promised;
  accounts_.take(promised, tag, reserved);
}

bool AcceleratorMemory::freed(void* data) noexcept {
  std::shared_ptr<Arena> arena, in_use;
  {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.find(data);
    if (block == blocks_.end()) return false;
    in_use = arena_.lock();
    accounts_.give(block->second.size, block->second.tag);
    arena = std::move(block->second.arena);
    blocks_.erase(block);
  }
  if (arena) {
    arena->give(data);
  } else {
    if (in_use) in_use->gone(data);
    supply_->give(data);
  }
  return true;
}

void AcceleratorMemory::refuse(Bytes bytes) const {
  OutOfBudget::Details details;
  details.requested = bytes;
  details.device = device_;
  details.operation = current_operation();
  details.stats = stats();
  details.in_step = handlers_.any();
  std::vector<std::pair<Bytes, Tag>> blocks;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [data, block] : blocks_) blocks.emplace_back(block.size, block.tag);
  }
  details.largest = largest_of(std::move(blocks));
  memory::refuse(std::move(details));
}

Stats AcceleratorMemory::stats() const {
  const Bytes reserved = supply_->reserved();
  const std::lock_guard lock(mutex_);
  Stats stats = accounts_.stats();
  stats.mapped = reserved;
  stats.mapped_peak = std::max(stats.mapped_peak, reserved);
  stats.limit = limit_;
  stats.pressure_calls = handlers_.calls();
  return stats;
}

void AcceleratorMemory::reset_peak() {
  const Bytes reserved = supply_->reserved();
  const std::lock_guard lock(mutex_);
  accounts_.reset_peak(reserved);
}

void AcceleratorMemory::set_limit(std::optional<Bytes> limit) {
  const std::lock_guard both(limit_mutex_);
  {
    const std::lock_guard lock(mutex_);
    limit_ = limit;
  }
  supply_->limit_reserved(limit);
  if (limit && supply_->reserved() > *limit) supply_->release_cached();
}

bool AcceleratorMemory::allocated_since(const c10::Storage& storage, AllocationTime time) const {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(storage.data_ptr().get_context());
  return block != blocks_.end() && block->second.born > time;
}

void AcceleratorMemory::retag(const c10::Storage& storage, Tag tag) {
  const std::lock_guard lock(mutex_);
  const auto block = blocks_.find(storage.data_ptr().get_context());
  if (block != blocks_.end()) accounts_.retag(block->second.size, std::exchange(block->second.tag, tag), tag);
}

void AcceleratorMemory::adopt(const c10::Storage& storage) {
  const c10::DataPtr& data = storage.data_ptr();
  if (storage.device() != device_ || data.get() == nullptr || !supply_->has_given(data)) return;
  void* const address = data.get();
  c10::DataPtr before = storage.unsafeGetStorageImpl()->set_data_ptr({address, address, free_, device_});
  (void)before.release_context();  // freed() gives it back
  const Bytes size = supply_->rounded(static_cast<Bytes>(storage.nbytes()));
  const Bytes reserved = supply_->reserved();
  const std::lock_guard lock(mutex_);
  blocks_.insert_or_assign(address, Block{size, Tag::Weights, 0, nullptr});
  accounts_.take(size, Tag::Weights, reserved);
}

}  // namespace snug::memory
