#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "snug/plan/step/dataflow.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// An operator that may have saved a value, as far as a recording tells: autograd saves what an operator reads in front
/// of it, and what it makes behind it, where a function that differentiates for itself saves what it reads, too.
struct Saver {
  enum class By : std::uint8_t { Reading, Making };
  ValueId value = kNoValue;
  OpId op = kNoOp;
  By by = By::Reading;
  bool alone = false;  ///< nobody else can have been it
  friend bool operator==(const Saver&, const Saver&) = default;
};

/// Of each Save among the events, in their order. None of one that no operator around it reads or has made.
[[nodiscard]] std::vector<Saver> possible_savers(const Dataflow& flow, std::span<const Event> events);

}  // namespace snug::plan
