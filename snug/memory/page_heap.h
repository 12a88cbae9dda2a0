#pragma once

#include <cstddef>
#include <optional>

#include "snug/base/bytes.h"
#include "snug/base/range_heap.h"
#include "snug/memory/address_range.h"

namespace snug::memory {

/// Whole pages out of one reserved range of addresses. Freed pages stay mapped (cached) and are taken again first, so
/// that a step which repeats pays for no page faults. Under a limit, scattered ones are moved together where a longer
/// range is asked for. Address space is never the limit, physical pages are. Not synchronized.
class PageHeap {
 public:
  static constexpr Bytes kPage = AddressRange::kPage;

  PageHeap() { fresh_.give(0, addresses_.size()); }

  /// `length` bytes, a multiple of kPage, at a page boundary; nullptr when mapped() would have to pass the limit, or
  /// when no address is left. Contents are unspecified.
  std::byte* take(Bytes length);
  void give(std::byte* address, Bytes length);

  void set_limit(std::optional<Bytes> limit) {
    limit_ = limit;
    // Only whole pages are ever mapped or unmapped: an excess that is not whole would split a page between two ranges.
    pages_limit_ = limit ? std::optional(*limit / kPage * kPage) : std::nullopt;
  }
  [[nodiscard]] std::optional<Bytes> limit() const noexcept { return limit_; }

  /// Unmaps all cached pages.
  void release_cached();

  [[nodiscard]] Bytes mapped() const noexcept { return taken_ + cached_.total(); }
  [[nodiscard]] Bytes taken() const noexcept { return taken_; }
  /// All bytes so far whose pages came from elsewhere in the heap, not from the system.
  [[nodiscard]] Bytes moved() const noexcept { return moved_; }

 private:
  /// Where a request may be served: addresses that are mapped already beside ones that are not.
  struct Candidate {
    Bytes offset;
    Bytes cached_offset, cached_length;
    Bytes fresh_offset, fresh_length;
  };
  std::optional<Candidate> extend_cached(Bytes length) const;
  std::optional<Candidate> all_fresh(Bytes length) const;
  bool fill(const Candidate& target);
  void unmap(Bytes offset, Bytes length);

  AddressRange addresses_;
  RangeHeap cached_;  // free and mapped
  RangeHeap fresh_;   // free and not mapped
  Bytes taken_ = 0;
  Bytes moved_ = 0;
  std::optional<Bytes> limit_;        // as it was set
  std::optional<Bytes> pages_limit_;  // of it, what whole pages can use
};

}  // namespace snug::memory
