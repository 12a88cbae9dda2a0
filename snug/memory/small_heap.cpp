#include "snug/memory/small_heap.h"

#include <cstdint>
#include <utility>

namespace snug::memory {
namespace {
Bytes address_of(const std::byte* p) { return static_cast<Bytes>(reinterpret_cast<std::intptr_t>(p)); }
std::byte* pointer_to(Bytes address) { return reinterpret_cast<std::byte*>(static_cast<std::intptr_t>(address)); }
}  // namespace

std::byte* SmallHeap::take(Bytes length) {
  if (std::byte** const one = kept(length); one != nullptr && *one != nullptr) return std::exchange(*one, nullptr);
  auto address = take_free(length);
  if (!address) {
    give_kept();
    address = take_free(length);
  }
  if (!address) {
    std::byte* segment = pages_.take(kSegment);
    if (segment == nullptr) return nullptr;
    segments_.emplace(address_of(segment), 0);
    // The last granule is never handed out: neighbouring segments must not merge, or one could not go back alone.
    free_.give(address_of(segment), kSegment - kGranule);
    address = take_free(length);
  }
  return pointer_to(*address);
}

void SmallHeap::give(std::byte* address, Bytes length) {
  if (std::byte** const one = kept(length); one != nullptr && *one == nullptr) {
    *one = address;
  } else {
    give_free(address_of(address), length);
  }
}

std::optional<Bytes> SmallHeap::take_free(Bytes length) {
  const auto address = free_.take(length);
  if (address) std::prev(segments_.upper_bound(*address))->second += length;
  return address;
}

void SmallHeap::give_free(Bytes address, Bytes length) {
  free_.give(address, length);
  std::prev(segments_.upper_bound(address))->second -= length;
}

void SmallHeap::give_kept() {
  for (std::size_t i = 0; i < kLengths; ++i) {
    if (kept_[i] == nullptr) continue;
    give_free(address_of(std::exchange(kept_[i], nullptr)), static_cast<Bytes>(i + 1) * kGranule);
  }
}

void SmallHeap::release_empty() {
  give_kept();
  for (auto segment = segments_.begin(); segment != segments_.end();) {
    if (segment->second != 0) {
      ++segment;
      continue;
    }
    free_.take_at(segment->first, kSegment - kGranule);
    pages_.give(pointer_to(segment->first), kSegment);
    segment = segments_.erase(segment);
  }
}

}  // namespace snug::memory
