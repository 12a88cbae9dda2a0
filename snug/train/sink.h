#pragma once

#include <cstdint>
#include <optional>

#include "snug/base/bytes.h"
#include "snug/train/train_result.h"

namespace snug::train {

struct Config;

/// What one step of a run was.
struct StepRecord {
  std::int64_t step = 0;    ///< the number of this one, from 1
  std::int64_t steps = 0;   ///< that the whole run has
  std::int64_t tokens = 0;  ///< that the run has learned from, this step's among them
  double epoch = 0;         ///< how often it has seen the data, this step's among it: 1.5 is in the second time
  double learning_rate = 0;
  double loss = 0;
  double gradient_norm = 0;  ///< before clipping
  double seconds = 0;        ///< of the step, update included
  double tokens_per_second = 0;
  double run_seconds = 0;       ///< since the first step began
  Bytes peak = 0;               ///< highest so far, of what was allocated
  std::optional<Bytes> budget;  ///< that its plan was made for
  std::int64_t replayed_ops = 0;
  Bytes lossy_bytes = 0;  ///< of values that are left to a lossy codec
  std::int64_t evictions = 0;
  bool overflowed = false;                ///< it had no update, see optim::GradScaler
  std::optional<double> loss_scale;       ///< of this step, where losses are scaled
  std::optional<double> next_loss_scale;  ///< of the one behind it
  std::optional<double> validation_loss;  ///< when it was followed by a validation, which is over
};

/// Where a training run tells what it does. What cannot be written is no reason to stop a run. One thread.
class Sink {
 public:
  Sink() = default;
  virtual ~Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  /// Before the first step.
  virtual void begins(const Config& /*config*/, std::int64_t /*parameters*/) {}
  /// After each step, before its state is saved and it is validated.
  virtual void step(const StepRecord& /*record*/) {}
  /// It was validated after so many steps.
  virtual void validated(std::int64_t /*steps*/, double /*loss*/) {}
  /// The same step once more, after that.
  virtual void step_over(const StepRecord& /*record*/) {}
  /// No step follows, and what the run leaves has yet to be saved.
  virtual void steps_end() {}
  /// The run is over. May throw Error for what was lost.
  virtual void ends(const TrainResult& /*result*/) {}
};

}  // namespace snug::train
