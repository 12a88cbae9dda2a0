#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "snug/plan/step/dataflow.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// A value was saved so often between two operators in a row, kNoOp at the ends of the step. Who has saved it a
/// recording tells as far as this: autograd saves what an operator reads in front of it, and what it makes behind it,
/// where a function that differentiates for itself saves what it reads, too.
struct SavedBetween {
  ValueId value = kNoValue;
  std::ptrdiff_t times = 0;
  OpId last = kNoOp, next = kNoOp;
  friend bool operator==(const SavedBetween&, const SavedBetween&) = default;
};

/// In the order of the step, and between two operators of the values.
[[nodiscard]] std::vector<SavedBetween> saves_between_operators(std::span<const Event> events);

/// How often the operator, which may be kNoOp, reads the value.
[[nodiscard]] std::ptrdiff_t times_read(const Dataflow& flow, OpId op, ValueId value);
/// Whether it has made it.
[[nodiscard]] bool makes(const Dataflow& flow, OpId op, ValueId value);

}  // namespace snug::plan
