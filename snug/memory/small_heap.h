#pragma once

#include <cstddef>
#include <map>

#include "snug/base/bytes.h"
#include "snug/memory/page_heap.h"

namespace snug::memory {

/// Small blocks, best fit inside segments that come from a PageHeap. Not synchronized.
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
  PageHeap& pages_;
  RangeHeap free_;                   // by address
  std::map<Bytes, Bytes> segments_;  // address -> bytes in use
};

}  // namespace snug::memory
