#include "snug/memory/host_pool.h"

#include <ATen/Context.h>
#include <ATen/detail/AcceleratorHooksInterface.h>
#include <fmt/format.h>

#include <algorithm>

#include "snug/base/errors.h"
#include "snug/base/match.h"

namespace snug::memory {
namespace {

constexpr Bytes kSlab = 32_MiB;

Bytes whole_pages(Bytes bytes) { return (bytes + PageHeap::kPage - 1) / PageHeap::kPage * PageHeap::kPage; }

}  // namespace

// --- page-locked memory --------------------------------------------------------------------------------------------

std::byte* HostPool::Slabs::take(Bytes length) {
  const auto from = [&](Slab& slab) -> std::byte* {
    const auto offset = slab.free.take(length);
    return offset ? static_cast<std::byte*>(slab.memory.get()) + *offset : nullptr;
  };
  for (Slab& slab : slabs_) {
    if (std::byte* const block = from(slab)) return block;
  }
  // Not all of a slab where that passes the budget.
  const Bytes room = budget_ ? *budget_ - held_ : kSlab;
  if (length > room && budget_) return nullptr;
  const Bytes size = std::max(length, std::min(kSlab, room));
  Slab fresh{allocator_.allocate(static_cast<std::size_t>(size)), size, {}};
  fresh.free.give(0, size);
  held_ += size;
  return from(slabs_.emplace_back(std::move(fresh)));
}

void HostPool::Slabs::give(std::byte* address, Bytes length) {
  const auto slab = std::ranges::find_if(slabs_, [&](const Slab& s) {
    const auto* const begin = static_cast<const std::byte*>(s.memory.get());
    return address >= begin && address < begin + s.size;
  });
  slab->free.give(address - static_cast<std::byte*>(slab->memory.get()), length);
}

void HostPool::Slabs::release_cached() {
  std::erase_if(slabs_, [&](const Slab& slab) {
    if (slab.free.total() < slab.size) return false;
    held_ -= slab.size;
    return true;
  });
}

// --- the pool ------------------------------------------------------------------------------------------------------

std::variant<PageHeap, HostPool::Slabs> HostPool::source_for(c10::DeviceType type, std::optional<Bytes> budget) {
  if (type == c10::kCPU) return std::variant<PageHeap, Slabs>(std::in_place_type<PageHeap>);
  auto* const pinned = at::globalContext().getAcceleratorHooksInterface(type).getPinnedMemoryAllocator();
  return std::variant<PageHeap, Slabs>(std::in_place_type<Slabs>, *pinned, budget);
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
    throw Error(
        fmt::format("offload: {} do not fit into the host's memory, of which {} of {} are taken; raise the host "
                    "budget",
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

void HostPool::release_cached() {
  const std::lock_guard lock(mutex_);
  std::visit([](auto& source) { source.release_cached(); }, source_);
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
