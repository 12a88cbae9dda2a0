#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "snug/data/batch.h"

namespace snug::train {

/// What a run learns, and from what: its batches, their loss, how it is evaluated, and in what its speed is counted.
/// What an Experiment trains; there is one yet, LanguageTask.
class Task {
 public:
  Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  virtual ~Task() = default;

  [[nodiscard]] virtual torch::nn::Module& module() const = 0;

  /// The batch of a step, from 0: a function of the seed and the step alone. Safe from any number of threads.
  [[nodiscard]] virtual data::Batch train_batch(std::int64_t step) const = 0;
  /// The loss of a batch: a scalar on the autograd graph.
  [[nodiscard]] virtual at::Tensor loss(const data::Batch& batch) const = 0;

  /// How many batches there are to evaluate on; 0: none. The mean of their losses is the figure.
  [[nodiscard]] virtual std::int64_t validation_batches() const = 0;
  [[nodiscard]] virtual data::Batch validation_batch(std::int64_t i) const = 0;

  /// What a step learns from, in the unit that speed is counted in: tokens.
  [[nodiscard]] virtual std::int64_t units_per_step() const = 0;
  /// How many steps take every sample once; rarely a whole number.
  [[nodiscard]] virtual double steps_per_epoch() const = 0;

  /// Of the files that decide what it is, but for what a state has, to tell when they were replaced: sizes and samples.
  [[nodiscard]] virtual const std::string& fingerprint() const = 0;
  /// Messages for the user about the data and model files, such as how many files were skipped. One line each.
  [[nodiscard]] virtual const std::vector<std::string>& notes() const = 0;
};

}  // namespace snug::train
