#pragma once

#include <functional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/record/tape_observer.h"

namespace snug::replay {

/// Ends a recording that somebody no longer waits for: asks in front of each operator, and where backward asks for a
/// saved tensor, by whichever thread does so, and throws Stopped.
class StopAsked : public record::TapeObserver {
 public:
  explicit StopAsked(std::function<bool()> stop) : stop_(std::move(stop)) {}

  void op_begins(const record::Tape& /*tape*/) override { ask(); }
  void unpacked(plan::ValueId /*value*/) override { ask(); }

 private:
  void ask() const {
    if (stop_()) throw Stopped("step: stopped while it was recorded");
  }

  std::function<bool()> stop_;
};

}  // namespace snug::replay
