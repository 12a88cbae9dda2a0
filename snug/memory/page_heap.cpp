#include "snug/memory/page_heap.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "snug/base/errors.h"

namespace snug::memory {
namespace {
constexpr Bytes kReserve = Bytes{1} << 42;  // 4 TiB of addresses cost nothing
constexpr Bytes kLeastReserve = Bytes{1} << 33;
constexpr int kExtensionsTried = 8;
}  // namespace

PageHeap::PageHeap() {
  // Address space may be limited (ulimit -v): take what there is.
  for (reserved_ = kReserve; reserved_ >= kLeastReserve; reserved_ /= 2) {
    void* address = ::mmap(nullptr, static_cast<std::size_t>(reserved_), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address != MAP_FAILED) {
      base_ = static_cast<std::byte*>(address);
      // A huge page would make more resident than what is mapped here.
      ::madvise(address, static_cast<std::size_t>(reserved_), MADV_NOHUGEPAGE);
      break;
    }
  }
  if (base_ == nullptr) throw Error("memory: the system refuses to reserve 8 GiB of addresses; raise ulimit -v");
  fresh_.give(0, reserved_);
}

PageHeap::~PageHeap() { ::munmap(base_, static_cast<std::size_t>(reserved_)); }

void PageHeap::unmap(Bytes offset, Bytes length) {
  ::madvise(base_ + offset, static_cast<std::size_t>(length), MADV_DONTNEED);
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

bool PageHeap::make_room_for(Bytes fresh, Bytes spared_offset, Bytes spared_length) {
  if (!pages_limit_) return true;
  Bytes excess = mapped() + fresh - *pages_limit_;
  if (excess <= 0) return true;
  if (cached_.total() - spared_length < excess) return false;
  // The shortest ranges first: they are what fragmentation leaves, and the long ones serve more requests.
  std::vector<std::pair<Bytes, Bytes>> ranges;  // (length, offset)
  for (const auto& [offset, size] : cached_.ranges()) {
    if (offset != spared_offset || spared_length == 0) ranges.emplace_back(size, offset);
  }
  std::sort(ranges.begin(), ranges.end());
  for (const auto& [size, offset] : ranges) {
    if (excess <= 0) break;
    const Bytes unmapped = std::min(size, excess);
    unmap(offset + size - unmapped, unmapped);
    excess -= unmapped;
  }
  return excess <= 0;
}

std::byte* PageHeap::take(Bytes length) {
  if (pages_limit_ && taken_ + length > *pages_limit_) return nullptr;
  std::optional<Bytes> offset = cached_.take(length);
  if (!offset) {
    if (const auto candidate = extend_cached(length);
        candidate && make_room_for(candidate->fresh_length, candidate->cached_offset, candidate->cached_length)) {
      cached_.take_at(candidate->cached_offset, candidate->cached_length);
      fresh_.take_at(candidate->fresh_offset, candidate->fresh_length);
      offset = candidate->offset;
    } else if (make_room_for(length, 0, 0)) {
      offset = fresh_.take(length);
    }
  }
  if (!offset) return nullptr;
  taken_ += length;
  return base_ + *offset;
}

void PageHeap::give(std::byte* address, Bytes length) {
  const Bytes offset = address - base_;
  taken_ -= length;
  cached_.give(offset, length);
  // Only under a limit that was set when more than that was taken.
  if (pages_limit_ && mapped() > *pages_limit_) unmap(offset, std::min(length, mapped() - *pages_limit_));
}

}  // namespace snug::memory
