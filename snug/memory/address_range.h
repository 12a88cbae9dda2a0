#pragma once

#include <cstddef>
#include <set>

#include "snug/base/bytes.h"

namespace snug::memory {

/// One reserved range of private, anonymous memory: addresses without pages until they are touched. All offsets and
/// lengths are multiples of kPage. Not synchronized.
class AddressRange {
 public:
  static constexpr Bytes kPage = 4096;

  /// Reserves 4 TiB, or what a limit on address space (ulimit -v) leaves, at least 8 GiB. Throws Error below that.
  AddressRange();
  ~AddressRange();
  AddressRange(const AddressRange&) = delete;
  AddressRange& operator=(const AddressRange&) = delete;

  [[nodiscard]] std::byte* base() const noexcept { return base_; }
  [[nodiscard]] Bytes size() const noexcept { return size_; }

  /// Returns the pages of a range to the system. Its contents become zero.
  void release(Bytes offset, Bytes length);

  /// Gives the pages behind [from, from + length) to [to, to + length), which must have none; afterwards the source has
  /// none. An entry in a page table instead of a page fault and 4 KiB of zeros. Where the system cannot move pages
  /// (before Linux 5.7, or too many areas), they are released instead: never more are resident than before.
  /// Contents of both ranges are unspecified. Returns the bytes that were moved. Throws Error when the system takes
  /// addresses away and does not give them back; the target is then unusable, and neither range has pages.
  Bytes move(Bytes from, Bytes length, Bytes to);

  /// Where the system's areas may begin and end after moves. It moves only within one area at a time.
  [[nodiscard]] std::size_t seams() const noexcept { return seams_.size(); }

 private:
  /// [offset, offset + length) is one area now.
  void join(Bytes offset, Bytes length);

  std::byte* base_ = nullptr;
  Bytes size_ = 0;
  std::set<Bytes> seams_;
  bool can_move_ = true;  // until the system refuses for another reason than a lack of memory
};

}  // namespace snug::memory
