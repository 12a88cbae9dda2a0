#include "snug/memory/page_heap.h"

#include <algorithm>
#include <vector>

namespace snug::memory {
namespace {
constexpr int kExtensionsTried = 8;
}  // namespace

void PageHeap::unmap(Bytes offset, Bytes length) {
  addresses_.release(offset, length);
  cached_.take_at(offset, length);
  fresh_.give(offset, length);
}

void PageHeap::release_cached() {
  const std::vector<std::pair<Bytes, Bytes>> ranges(cached_.ranges().begin(), cached_.ranges().end());
  for (const auto& [offset, length] : ranges) unmap(offset, length);
}

std::optional<PageHeap::Candidate> PageHeap::extend_cached(Bytes length) const {
  // A cached range that is too short, together with the fresh pages beside it. Longest first: fewest page faults.
  std::vector<std::pair<Bytes, Bytes>> ranges;  // (length, offset)
  for (const auto& [offset, size] : cached_.ranges()) ranges.emplace_back(size, offset);
  const auto tried = std::min<std::size_t>(ranges.size(), kExtensionsTried);
  std::partial_sort(ranges.begin(), ranges.begin() + static_cast<std::ptrdiff_t>(tried), ranges.end(),
                    std::greater<>());
  for (std::size_t i = 0; i < tried; ++i) {
    const auto [size, offset] = ranges[i];
    const Bytes missing = length - size;
    if (const auto after = fresh_.starting_at(offset + size); after && after->second >= missing) {
      return Candidate{offset, offset, size, offset + size, missing};
    }
    if (const auto before = fresh_.ending_at(offset); before && before->second >= missing) {
      return Candidate{offset - missing, offset, size, offset - missing, missing};
    }
  }
  return std::nullopt;
}

std::optional<PageHeap::Candidate> PageHeap::all_fresh(Bytes length) const {
  const auto range = fresh_.smallest(length);
  if (!range) return std::nullopt;
  return Candidate{range->first, range->first, 0, range->first, length};
}

bool PageHeap::fill(const Candidate& target) {
  Bytes excess = pages_limit_ ? std::max<Bytes>(mapped() + target.fresh_length - *pages_limit_, 0) : 0;
  if (cached_.total() - target.cached_length < excess) return false;
  // The shortest ranges first: they are what fragmentation leaves, and the long ones serve more requests.
  std::vector<std::pair<Bytes, Bytes>> ranges;  // (length, offset)
  if (excess > 0) {
    for (const auto& [offset, size] : cached_.ranges()) {
      if (offset != target.cached_offset || target.cached_length == 0) ranges.emplace_back(size, offset);
    }
    std::sort(ranges.begin(), ranges.end());
  }
  if (target.cached_length > 0) cached_.take_at(target.cached_offset, target.cached_length);
  fresh_.take_at(target.fresh_offset, target.fresh_length);
  Bytes filled = 0;
  for (const auto& [size, offset] : ranges) {
    if (excess <= 0) break;
    const Bytes part = std::min(size, excess);
    const Bytes from = offset + size - part;
    // More than the target holds is in excess only under a limit that was set when more than that was taken.
    const Bytes movable = std::min(part, target.fresh_length - filled);
    cached_.take_at(from, part);
    try {
      moved_ += addresses_.move(from, movable, target.fresh_offset + filled);
    } catch (...) {
      // Its part of the fresh addresses is lost, and no pages with it.
      fresh_.give(from, part);
      if (movable < part) addresses_.release(from + movable, part - movable);
      if (filled > 0) addresses_.release(target.fresh_offset, filled);
      if (filled > 0) fresh_.give(target.fresh_offset, filled);
      const Bytes unfilled = target.fresh_length - filled - movable;
      if (unfilled > 0) fresh_.give(target.fresh_offset + filled + movable, unfilled);
      if (target.cached_length > 0) cached_.give(target.cached_offset, target.cached_length);
      throw;
    }
    if (movable < part) addresses_.release(from + movable, part - movable);
    fresh_.give(from, part);
    filled += movable;
    excess -= part;
  }
  return true;
}

std::byte* PageHeap::take(Bytes length) {
  if (pages_limit_ && taken_ + length > *pages_limit_) return nullptr;
  std::optional<Bytes> offset = cached_.take(length);
  if (!offset) {
    if (const auto extended = extend_cached(length); extended && fill(*extended)) {
      offset = extended->offset;
    } else if (const auto fresh = all_fresh(length); fresh && fill(*fresh)) {
      offset = fresh->offset;
    }
  }
  if (!offset) return nullptr;
  taken_ += length;
  return addresses_.base() + *offset;
}

void PageHeap::give(std::byte* address, Bytes length) {
  const Bytes offset = address - addresses_.base();
  taken_ -= length;
  cached_.give(offset, length);
  // Only under a limit that was set when more than that was taken.
  if (pages_limit_ && mapped() > *pages_limit_) unmap(offset, std::min(length, mapped() - *pages_limit_));
}

}  // namespace snug::memory
