#pragma once

#include <algorithm>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/ids.h"
#include "snug/plan/step/move_cost.h"

namespace snug::plan {

/// When copies between the device and another home are over, which go on beside what the step computes: each way one at
/// a time, in the order in which they begin. Seconds after the step's beginning.
class LinkClock {
 public:
  LinkClock(const MoveCost& cost, std::size_t values) : cost_(cost), left_(values, 0), there_(values, 0) {}

  void send(ValueId value, Bytes bytes, double now) {
    left_[at(value)] = out_ = std::max(now, out_) + cost_.out(bytes);
  }
  /// Not before it has left.
  void fetch(ValueId value, Bytes bytes, double now) {
    there_[at(value)] = in_ = std::max({now, in_, left_[at(value)]}) + cost_.in(bytes);
  }
  /// When what was sent, or fetched, last is there.
  [[nodiscard]] double left(ValueId value) const { return left_[at(value)]; }
  [[nodiscard]] double there(ValueId value) const { return there_[at(value)]; }

 private:
  MoveCost cost_;
  std::vector<double> left_, there_;  // by ValueId
  double out_ = 0, in_ = 0;           // when each way is free
};

}  // namespace snug::plan
