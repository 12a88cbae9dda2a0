#include "snug/memory/host_pool.h"

#include <ATen/Context.h>
#include <ATen/detail/AcceleratorHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "snug/base/errors.h"
#include "snug/base/match.h"

namespace snug::memory {
namespace {

constexpr Bytes kSlab = 32_MiB;

Bytes power_of_two_from(Bytes bytes) {
  return static_cast<Bytes>(std::bit_ceil(static_cast<std::uint64_t>(std::max(bytes, PageHeap::kPage))));
}

Bytes whole_pages(Bytes bytes) { return (bytes + PageHeap::kPage - 1) / PageHeap::kPage * PageHeap::kPage; }

}  // namespace

// --- page-locked memory --------------------------------------------------------------------------------------------

HostPool::Slabs::Slabs(c10::DeviceType copies_with, std::optional<Bytes> budget)
    : copies_with_(copies_with),
      allocator_(*at::globalContext().getAcceleratorHooksInterface(copies_with).getPinnedMemoryAllocator()),
      budget_(budget) {}

std::byte* HostPool::Slabs::take(Bytes length) {
  const auto from = [&](Slab& slab) -> std::byte* {
    const auto offset = slab.free.take(length);
    return offset ? static_cast<std::byte*>(slab.memory.get()) + *offset : nullptr;
  };
  for (Slab& slab : slabs_) {
    if (std::byte* const block = from(slab)) return block;
  }
  const auto room = [&] { return budget_ ? std::max<Bytes>(*budget_ - held_, 0) : std::numeric_limits<Bytes>::max(); };
  // LibTorch rounds up to powers of two.
  const Bytes least = power_of_two_from(length);
  if (least > room()) release_cached();  // slabs that were too small
  if (least > room()) return nullptr;
  Bytes size = std::max(least, kSlab);
  while (size > room()) size /= 2;
  c10::DataPtr memory;
  try {
    memory = allocator_.allocate(static_cast<std::size_t>(size));
  } catch (const c10::Error&) {
    return nullptr;
  }
  slabs_.push_back({std::move(memory), size, {}});
  slabs_.back().free.give(0, size);
  held_ += size;
  return from(slabs_.back());
}

void HostPool::Slabs::give(std::byte* address, Bytes length) {
  const auto slab = std::ranges::find_if(slabs_, [&](const Slab& s) {
    const auto* const begin = static_cast<const std::byte*>(s.memory.get());
    return address >= begin && address < begin + s.size;
  });
  slab->free.give(address - static_cast<std::byte*>(slab->memory.get()), length);
}

void HostPool::Slabs::release_cached() {
  const auto unused = [](const Slab& slab) { return slab.free.total() == slab.size; };
  if (std::ranges::none_of(slabs_, unused)) return;
  // LibTorch knows nothing of copies that may still read what was given back.
  const c10::impl::VirtualGuardImpl guard(copies_with_);
  for (c10::DeviceIndex i = 0; i < guard.deviceCount(); ++i) guard.synchronizeDevice(i);
  std::erase_if(slabs_, [&](const Slab& slab) {
    if (!unused(slab)) return false;
    held_ -= slab.size;
    return true;
  });
}

// --- the pool ------------------------------------------------------------------------------------------------------

std::variant<PageHeap, HostPool::Slabs> HostPool::source_for(c10::DeviceType type, std::optional<Bytes> budget) {
  if (type == c10::kCPU) return std::variant<PageHeap, Slabs>(std::in_place_type<PageHeap>);
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
