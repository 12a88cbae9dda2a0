#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/ids.h"

namespace snug::plan {

/// Values on their way to the host, whose copies nobody waits for yet: until they are gone, their memory on the device
/// is taken. The step and the simulator share it, so that a peak does not depend on how fast copies are.
class Departures {
 public:
  /// A value's copy begins. Returns those that must be gone now, so that no more than `most` bytes are on their way
  /// (Staging::leaving), the oldest first: itself too, where it alone is more.
  std::vector<ValueId> begin(ValueId value, Bytes bytes, Bytes most);
  /// It is gone. Does nothing for others.
  void end(ValueId value);
  /// All are.
  std::vector<ValueId> end_all();

  [[nodiscard]] bool empty() const noexcept { return leaving_.empty(); }
  /// The oldest first.
  [[nodiscard]] std::vector<ValueId> on_their_way() const;

 private:
  Bytes bytes_ = 0;
  std::deque<std::pair<ValueId, Bytes>> leaving_;
};

}  // namespace snug::plan
