#pragma once

#include "snug/base/bytes.h"
#include "snug/memory/stats.h"

namespace snug::replay {

/// What a device holds for training that is not there at every step's beginning.
struct PassingBytes {
  Bytes state_to_come = 0;  ///< optimizer state that the first update will make
  Bytes beside = 0;         ///< what others hold beside the steps, and not at every moment, as batches made ahead
  Bytes gradients = 0;      ///< that were there before, of a step of the kind Later or Last
};

/// What a device has allocated outside of the steps, and what of it is away at the moment. Not synchronized.
class OutsideMemory {
 public:
  OutsideMemory() = default;  // nothing
  /// `whole`: all of it before the first step, with all that passes and without gradients.
  OutsideMemory(Bytes whole, const PassingBytes& passing)
      : whole_(whole), state_to_come_(passing.state_to_come), beside_(passing.beside), missing_(passing.beside) {}

  /// A step begins with so much allocated, of which `gradients` are gradients. State that has come by now is not to
  /// come any more.
  void begin(Bytes allocated, Bytes gradients);

  /// What is away now and counts.
  [[nodiscard]] Bytes to_come() const noexcept { return state_to_come_ + missing_; }

  /// visit(bytes) of its parts, for processes that agree on them.
  template <class Visit>
  void each_passing(const Visit& visit) {
    visit(state_to_come_);
    visit(missing_);
  }

  /// Counts that in.
  void count_missing(Bytes& static_bytes, memory::ByTag& by_tag) const;

 private:
  Bytes whole_ = 0;
  Bytes state_to_come_ = 0;
  Bytes beside_ = 0;   // that others may hold beside the steps
  Bytes missing_ = 0;  // of that, now
};

}  // namespace snug::replay
