#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "snug/base/bytes.h"

namespace snug {

/// Free ranges of an address space, best fit, neighbours merged. Offsets and lengths in bytes. Not synchronized.
class RangeHeap {
 public:
  /// Takes `length` bytes from the smallest range that holds them (the lowest of equals); nullopt when none does.
  std::optional<Bytes> take(Bytes length);

  /// Whether all of [offset, offset + length) is free.
  [[nodiscard]] bool has(Bytes offset, Bytes length) const;

  /// Takes exactly [offset, offset + length), which must be free.
  void take_at(Bytes offset, Bytes length);

  /// Adds a range that is not free yet, and merges it with its neighbours. Returns the merged range.
  std::pair<Bytes, Bytes> give(Bytes offset, Bytes length);

  /// The range that take would use, as (offset, length of the whole range).
  [[nodiscard]] std::optional<std::pair<Bytes, Bytes>> smallest(Bytes length) const;

  /// The longest range as (offset, length), or nullopt when nothing is free.
  [[nodiscard]] std::optional<std::pair<Bytes, Bytes>> longest() const;

  /// The free range that starts at `offset`, or ends at it: its (offset, length).
  [[nodiscard]] std::optional<std::pair<Bytes, Bytes>> starting_at(Bytes offset) const;
  [[nodiscard]] std::optional<std::pair<Bytes, Bytes>> ending_at(Bytes offset) const;

  [[nodiscard]] Bytes total() const noexcept { return total_; }
  [[nodiscard]] const std::map<Bytes, Bytes>& ranges() const noexcept { return by_offset_; }

 private:
  void insert(Bytes offset, Bytes length);
  void erase(std::map<Bytes, Bytes>::iterator range);

  std::map<Bytes, Bytes> by_offset_;           // offset -> length
  std::set<std::pair<Bytes, Bytes>> by_size_;  // (length, offset)
  Bytes total_ = 0;
};

}  // namespace snug
