#include "snug/replay/outside_memory.h"

#include <algorithm>

#include "snug/memory/tag.h"

namespace snug::replay {

void OutsideMemory::begin(Bytes allocated, Bytes gradients) {
  const Bytes absent = whole_ - (allocated - gradients);
  state_to_come_ = std::clamp<Bytes>(absent, 0, state_to_come_);
  missing_ = std::clamp<Bytes>(absent - state_to_come_, 0, beside_);
}

void OutsideMemory::count_missing(Bytes& static_bytes, memory::ByTag& by_tag) const {
  static_bytes += to_come();
  by_tag[static_cast<std::size_t>(memory::Tag::Optimizer)] += state_to_come_;
  by_tag[static_cast<std::size_t>(memory::Tag::Staging)] += missing_;
}

}  // namespace snug::replay
