#pragma once

#include <cstdint>

namespace snug::replay {

/// The kinds of steps that training is made of. Each has a plan of its own.
enum class StepKind : std::uint8_t {
  First,       ///< gradients are made: a step of its own, or the first micro-batch of one
  Later,       ///< gradients are there before, and backward adds to them: a later micro-batch
  Last,        ///< as Later, and its backward pass updates the parameters and lets go of the gradients
  MicroBatch,  ///< one of those that a step function goes backward with one by one (MicroBatch), in any order
  Evaluation   ///< forward only
};

}  // namespace snug::replay
