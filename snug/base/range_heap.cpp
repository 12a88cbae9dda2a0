#include "snug/base/range_heap.h"

namespace snug {

void RangeHeap::insert(Bytes offset, Bytes length) {
  by_offset_.emplace(offset, length);
  by_size_.emplace(length, offset);
  total_ += length;
}

void RangeHeap::erase(std::map<Bytes, Bytes>::iterator range) {
  by_size_.erase({range->second, range->first});
  total_ -= range->second;
  by_offset_.erase(range);
}

std::optional<std::pair<Bytes, Bytes>> RangeHeap::smallest(Bytes length) const {
  const auto fit = by_size_.lower_bound({length, 0});
  if (fit == by_size_.end()) return std::nullopt;
  return std::pair(fit->second, fit->first);
}

std::optional<Bytes> RangeHeap::take(Bytes length) {
  const auto fit = smallest(length);
  if (!fit) return std::nullopt;
  take_at(fit->first, length);
  return fit->first;
}

bool RangeHeap::has(Bytes offset, Bytes length) const {
  auto range = by_offset_.upper_bound(offset);
  if (range == by_offset_.begin()) return false;
  --range;
  return range->first + range->second >= offset + length;
}

void RangeHeap::take_at(Bytes offset, Bytes length) {
  auto range = by_offset_.upper_bound(offset);
  --range;
  const auto [start, size] = *range;
  erase(range);
  if (start < offset) insert(start, offset - start);
  if (start + size > offset + length) insert(offset + length, start + size - offset - length);
}

std::pair<Bytes, Bytes> RangeHeap::give(Bytes offset, Bytes length) {
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.end() && next->first == offset + length) {
    length += next->second;
    const auto dead = next++;
    erase(dead);
  }
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      length += previous->second;
      erase(previous);
    }
  }
  insert(offset, length);
  return {offset, length};
}

std::optional<std::pair<Bytes, Bytes>> RangeHeap::longest() const {
  if (by_size_.empty()) return std::nullopt;
  const auto& [length, offset] = *by_size_.rbegin();
  return std::pair{offset, length};
}

std::optional<std::pair<Bytes, Bytes>> RangeHeap::starting_at(Bytes offset) const {
  const auto range = by_offset_.find(offset);
  if (range == by_offset_.end()) return std::nullopt;
  return *range;
}

std::optional<std::pair<Bytes, Bytes>> RangeHeap::ending_at(Bytes offset) const {
  auto range = by_offset_.lower_bound(offset);
  if (range == by_offset_.begin()) return std::nullopt;
  --range;
  if (range->first + range->second != offset) return std::nullopt;
  return *range;
}

}  // namespace snug
