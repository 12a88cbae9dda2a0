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

#include "snug/base/match.h"
#include "snug/memory/tier_full.h"

namespace snug::memory {
namespace {

Bytes whole_pages(Bytes bytes) { return (bytes + PageHeap::kPage - 1) / PageHeap::kPage * PageHeap::kPage; }

}  // namespace

// --- page-locked memory --------------------------------------------------------------------------------------------

HostPool::Slabs::Slabs(c10::DeviceType copies_with, std::optional<Bytes> budget)
    : copies_with_(copies_with),
      allocator_(*at::globalContext().getAcceleratorHooksInterface(copies_with).getPinnedMemoryAllocator()),
      book_(budget) {}

std::byte* HostPool::Slabs::take(Bytes length) {
  const auto taken = book_.take(length);
  if (!taken) return nullptr;
  const SlabBook::Id slab = taken->block.slab;
  if (taken->is_new) {
    try {
      free(taken->gone);
      memory_[slab] = allocator_.allocate(static_cast<std::size_t>(book_.size(slab)));  // rounds up to powers of two
    } catch (const std::exception&) {
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

void HostPool::Slabs::free(const std::vector<SlabBook::Id>& slabs) {
  if (slabs.empty()) return;
  // LibTorch knows nothing of copies that may still read what was given back.
  const c10::impl::VirtualGuardImpl guard(copies_with_);
  for (c10::DeviceIndex i = 0; i < guard.deviceCount(); ++i) guard.synchronizeDevice(i);
  for (const SlabBook::Id slab : slabs) memory_.erase(slab);
}

// --- the pool ------------------------------------------------------------------------------------------------------

std::variant<PageHeap, HostPool::Slabs> HostPool::source_for(c10::DeviceType type, std::optional<Bytes> budget) {
  if (type == c10::kCPU || !at::isAccelerator(type)) return std::variant<PageHeap, Slabs>(std::in_place_type<PageHeap>);
  return std::variant<PageHeap, Slabs>(std::in_place_type<Slabs>, type, budget);
}

HostPool::HostPool(c10::DeviceType copies_with, std::optional<Bytes> budget)
    : budget_(budget), source_(source_for(copies_with, budget)) {
  if (auto* const pages = std::get_if<PageHeap>(&source_)) pages->set_limit(budget);
}

HostPool::Block HostPool::take(Bytes bytes) {
  const Bytes length = whole_pages(std::max<Bytes>(bytes, 1));
  const std::lock_guard lock(mutex_);
  std::byte* const memory = std::visit([&](auto& source) { return source.take(length); }, source_);
  if (memory == nullptr) {
    throw TierFull(
        fmt::format("{} do not fit into the host's memory, of which {} of {} are taken; raise the host budget",
                    format_bytes(length), format_bytes(taken_), budget_ ? format_bytes(*budget_) : "all"));
  }
  taken_ += length;
  taken_peak_ = std::max(taken_peak_, taken_);
  return {*this, {memory, static_cast<std::size_t>(bytes)}};
}

void HostPool::give(std::span<std::byte> block) {
  const Bytes length = whole_pages(std::max<Bytes>(std::ssize(block), 1));
  const std::lock_guard lock(mutex_);
  std::visit([&](auto& source) { source.give(block.data(), length); }, source_);
  taken_ -= length;
}

Bytes HostPool::held() const {
  return std::visit(
      Match{[](const PageHeap& pages) { return pages.mapped(); }, [](const Slabs& slabs) { return slabs.held(); }},
      source_);
}

TierStats HostPool::stats() const {
  const std::lock_guard lock(mutex_);
  return {.taken = taken_, .taken_peak = taken_peak_, .held = held(), .budget = budget_};
}

}  // namespace snug::memory
