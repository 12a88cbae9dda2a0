#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>

#include "snug/base/bytes.h"
#include "snug/base/slab_book.h"
#include "snug/plan/run/link_clock.h"
#include "snug/plan/step/action.h"
#include "snug/plan/step/ids.h"
#include "snug/plan/step/move_cost.h"

namespace snug::plan {

/// What moved contents take there, in whole pages: on the disk they lie in them as they do in memory.
[[nodiscard]] Bytes room_for(Bytes bytes, Home home);

/// One home outside of the device during a step: the books of its room, as whoever has it keeps them, and its clock.
class Away {
 public:
  Away(Home of, const std::optional<MoveCost>& known, std::size_t values);

  /// Returns what is taken there then; more than the budget where it does not fit.
  Bytes take(ValueId v, Bytes bytes);
  void give(ValueId v, Bytes bytes);

  Home home;
  MoveCost cost;
  LinkClock link;

 private:
  Bytes there_ = 0;
  std::optional<SlabBook> slabs_;
  std::unordered_map<ValueId, SlabBook::Block> blocks_;
};

}  // namespace snug::plan
