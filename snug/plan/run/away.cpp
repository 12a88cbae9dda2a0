#include "snug/plan/run/away.h"

#include <algorithm>

namespace snug::plan {

Bytes room_for(Bytes bytes, Home home) {
  constexpr Bytes kPage = 4_KiB;  // what the host's memory is handed out in, and the disk's room
  return (bytes + kPage - 1) / kPage * kPage + (home == Home::Disk ? kPage : 0);
}

Away::Away(Home of, const std::optional<MoveCost>& known, std::size_t values)
    : home(of), cost(known.value_or(MoveCost{.overlaps = true, .budget = {}})), link(cost, values) {
  if (cost.in_slabs) slabs_.emplace(cost.budget);
}

Bytes Away::take(ValueId v, Bytes bytes) {
  if (!slabs_) return there_ += room_for(bytes, home);
  const auto taken = slabs_->take(room_for(bytes, home));
  if (!taken) return std::max(cost.budget.value_or(0) + 1, slabs_->held() + bytes);
  blocks_.emplace(v, taken->block);
  return slabs_->held();
}

void Away::give(ValueId v, Bytes bytes) {
  if (!slabs_) {
    there_ -= room_for(bytes, home);
  } else if (const auto block = blocks_.find(v); block != blocks_.end()) {
    slabs_->give(block->second, room_for(bytes, home));
    blocks_.erase(block);
  }
}

}  // namespace snug::plan
