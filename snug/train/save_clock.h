#pragma once

#include "snug/train/config.h"

namespace snug::train {

/// Requests a save of the training state (request_save) every state.interval seconds, if there is an output folder and
/// state.every is 0 or state.interval was set explicitly. The time between two saves is at least ten times what the
/// last one took. In a team each process has its own clock; a request in one of them is one in all.
class SaveClock {
 public:
  explicit SaveClock(const Config& config);
  /// The steps begin.
  void start();
  /// Before a step.
  void ask_if_due() const;
  void begin_save();
  void end_save();

 private:
  double interval_;  // seconds; 0: never
  double since_ = 0, began_ = 0, took_ = 0;
};

}  // namespace snug::train
