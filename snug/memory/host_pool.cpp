#include "snug/memory/host_pool.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/AcceleratorHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "snug/memory/tier_full.h"

namespace snug::memory {
namespace {

Bytes whole_pages(Bytes bytes) { return (bytes + PageHeap::kPage - 1) / PageHeap::kPage * PageHeap::kPage; }

}  // namespace

// --- page-locked memory --------------------------------------------------------------------------------------------

HostPool::Slabs::Slabs(c10::DeviceType copies_with)
    : copies_with_(copies_with),
      allocator_(*at::globalContext().getAcceleratorHooksInterface(copies_with).getPinnedMemoryAllocator()) {}

std::byte* HostPool::Slabs::take(Bytes length) {
  const auto taken = book_.take(length);
  if (!taken) return nullptr;
  const SlabBook::Id slab = taken->block.slab;
  if (taken->is_new) {
    try {
      free(taken->gone);
      memory_[slab] = allocator_.allocate(static_cast<std::size_t>(book_.size(slab)));  // rounds up to powers of two
    } catch (const std::exception&) {
      for (const SlabBook::Id gone : taken->gone) memory_.erase(gone);  // book_ has dropped them
      memory_.erase(slab);
      book_.drop(slab);
      return nullptr;
    }
  }
  return static_cast<std::byte*>(memory_.at(slab).get()) + taken->block.offset;
}

void HostPool::Slabs::give(std::byte* address, Bytes length) {
  for (const auto& [slab, memory] : memory_) {
    const auto* const begin = static_cast<const std::byte*>(memory.get());
    if (address >= begin && address < begin + book_.size(slab)) return book_.give({slab, address - begin}, length);
  }
}

void HostPool::Slabs::release_cached() {
  const std::vector<SlabBook::Id> unused = book_.unused();
  free(unused);  // first: it may throw
  for (const SlabBook::Id slab : unused) book_.drop(slab);
}

void HostPool::Slabs::free(const std::vector<SlabBook::Id>& slabs) {
  if (slabs.empty()) return;
  // LibTorch knows nothing of copies that may still read what was given back.
  const c10::impl::VirtualGuardImpl guard(copies_with_);
  for (c10::DeviceIndex i = 0; i < guard.deviceCount(); ++i) guard.synchronizeDevice(i);
  for (const SlabBook::Id slab : slabs) memory_.erase(slab);
}

// --- the pool ------------------------------------------------------------------------------------------------------

std::variant<PageHeap, HostPool::Slabs> HostPool::source_for(c10::DeviceType type) {
  if (type == c10::kCPU || !at::isAccelerator(type)) return std::variant<PageHeap, Slabs>(std::in_place_type<PageHeap>);
  return std::variant<PageHeap, Slabs>(std::in_place_type<Slabs>, type);
}

HostPool::HostPool(c10::DeviceType copies_with, std::shared_ptr<HostBudget> budget)
    : budget_(std::move(budget)), source_(source_for(copies_with)) {
  const std::lock_guard lock(budget_->mutex_);
  budget_->pools_.push_back(this);
}

HostPool::HostPool(c10::DeviceType copies_with, std::optional<Bytes> budget)
    : HostPool(copies_with, std::make_shared<HostBudget>(budget)) {}

HostPool::~HostPool() {
  const std::lock_guard lock(budget_->mutex_);
  std::erase(budget_->pools_, this);
}

std::byte* HostPool::try_take(Bytes length) {
  return std::visit(
      [&](auto& source) {
        if (budget_->most_) source.set_limit(std::max<Bytes>(*budget_->most_ - (budget_->held() - source.mapped()), 0));
        return source.take(length);
      },
      source_);
}

HostPool::Block HostPool::take(Bytes bytes) {
  const Bytes length = whole_pages(std::max<Bytes>(bytes, 1));
  const std::lock_guard lock(budget_->mutex_);
  std::byte* memory = try_take(length);
  if (memory == nullptr && budget_->pools_.size() > 1) {
    for (HostPool* const other : budget_->pools_) {
      if (other != this) std::visit([](auto& source) { source.release_cached(); }, other->source_);
    }
    memory = try_take(length);
  }
  if (memory == nullptr) throw TierFull(why_full(length));
  budget_->taken_ += length;
  budget_->taken_peak_ = std::max(budget_->taken_peak_, budget_->taken_);
  return {*this, {memory, static_cast<std::size_t>(bytes)}};
}

std::string HostPool::why_full(Bytes length) const {
  const std::string taken = format_bytes(budget_->taken_);
  const bool in_slabs = std::holds_alternative<Slabs>(source_);
  const Bytes takes = in_slabs ? SlabBook::least_slab(length) : length;
  if (!budget_->most_ || budget_->held() + takes <= *budget_->most_) {
    return fmt::format("host memory: the system refuses {} more, with {} taken; {} to plan with less",
                       format_bytes(length), taken, budget_->most_ ? "lower the host budget" : "set a host budget");
  }
  std::string piece;
  if (in_slabs) piece = fmt::format(" (as page-locked memory of {}, a power of two)", format_bytes(takes));
  return fmt::format("host memory: {}{} do not fit into the host budget of {}, of which {} are taken; raise it",
                     format_bytes(length), piece, format_bytes(*budget_->most_), taken);
}

void HostPool::give(std::span<std::byte> block) {
  const Bytes length = whole_pages(std::max<Bytes>(std::ssize(block), 1));
  const std::lock_guard lock(budget_->mutex_);
  std::visit([&](auto& source) { source.give(block.data(), length); }, source_);
  budget_->taken_ -= length;
}

Bytes HostPool::held() const {
  return std::visit([](const auto& source) { return source.mapped(); }, source_);
}

Bytes HostBudget::held() const {
  Bytes all = 0;
  for (const HostPool* const pool : pools_) all += pool->held();
  return all;
}

TierStats HostBudget::stats() const {
  const std::lock_guard lock(mutex_);
  return {.taken = taken_, .taken_peak = taken_peak_, .held = held(), .budget = most_};
}

}  // namespace snug::memory
