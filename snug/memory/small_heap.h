#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>

#include "snug/base/bytes.h"
#include "snug/memory/page_heap.h"

namespace snug::memory {

/// Small blocks, best fit inside segments that come from a PageHeap. Of each length one that was given back is kept
/// apart, for the next of that length, as most go as soon as they came. Not synchronized.
class SmallHeap {
 public:
  static constexpr Bytes kGranule = 64;
  static constexpr Bytes kSegment = 64_KiB;

  explicit SmallHeap(PageHeap& pages) : pages_(pages) {}

  /// `length` bytes, a multiple of kGranule and at most half a segment; nullptr when the pages refuse a new segment.
  std::byte* take(Bytes length);
  void give(std::byte* address, Bytes length);

  /// Gives segments without a block back to the pages.
  void release_empty();

 private:
  static constexpr std::size_t kLengths = 64;  // of which one is kept: up to 4 KiB
  [[nodiscard]] std::byte** kept(Bytes length) {
    const auto i = static_cast<std::size_t>(length / kGranule) - 1;
    return i < kLengths ? &kept_[i] : nullptr;
  }
  std::optional<Bytes> take_free(Bytes length);
  void give_free(Bytes address, Bytes length);
  void give_kept();

  PageHeap& pages_;
  std::array<std::byte*, kLengths> kept_{};  // in use, as far as segments know
  RangeHeap free_;                           // by address
  std::map<Bytes, Bytes> segments_;          // address -> bytes in use
};

}  // namespace snug::memory
