#pragma once

#include "snug/train/config.h"

namespace snug::train {

/// Asks for a training state by time (request_save), as state.interval says: by default only where state.every does not
/// say when, and never more often than that a run trains ten times as long as saving takes. In each process of a team,
/// which tell each other in every step and save together.
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
