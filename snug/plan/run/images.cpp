#include "snug/plan/run/images.h"

#include <algorithm>
#include <utility>

namespace snug::plan {

void Images::pack(ValueId value) {
  Entry& entry = entries_.at(value);
  ++entry.packs;
  ++entry.pending;
}

bool Images::drops_decoded(Entry& entry) { return entry.pending == 0 && std::exchange(entry.decoded, false); }

Images::Gone Images::consume(ValueId value) {
  Entry& entry = entries_.at(value);
  entry.pending = std::max(entry.pending - 1, 0);
  return {.decoded = drops_decoded(entry)};
}

Images::Gone Images::release(ValueId value, Unpacked unpacked) {
  Entry& entry = entries_.at(value);
  --entry.packs;
  if (unpacked == Unpacked::Not) entry.pending = std::max(entry.pending - 1, 0);
  const Gone gone{.decoded = drops_decoded(entry), .image = entry.packs == 0 && settled_};
  if (gone.image) entries_.erase(value);
  return gone;
}

void Images::begin_pass() {
  for (auto& [value, entry] : entries_) entry.pending = entry.packs;
}

std::vector<ValueId> Images::end_pass() {
  std::vector<ValueId> gone;
  for (auto& [value, entry] : entries_) {
    if (std::exchange(entry.decoded, false)) gone.push_back(value);
  }
  return gone;
}

std::vector<ValueId> Images::settle() {
  settled_ = true;
  std::vector<ValueId> gone;
  for (const auto& [value, entry] : entries_) {
    if (entry.packs == 0) gone.push_back(value);
  }
  for (const ValueId value : gone) entries_.erase(value);
  return gone;
}

}  // namespace snug::plan
