#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/ids.h"

namespace snug::plan {

/// The value stays resident from its making until its last use.
struct Keep {
  friend bool operator==(const Keep&, const Keep&) = default;
};
/// The value is dropped when the program lets go of it, and made again by replay if backward asks for it.
struct Recompute {
  friend bool operator==(const Recompute&, const Recompute&) = default;
};
/// What happens to a value between forward and backward.
using Action = std::variant<Keep, Recompute>;

/// Operators [begin, end) that are replayed together. Ranges nest or are disjoint.
struct SegmentRange {
  OpId begin = 0;
  OpId end = 0;
  friend bool operator==(const SegmentRange&, const SegmentRange&) = default;
};

/// What to do with every value of one recorded step, and what that is predicted to cost.
struct MemoryPlan {
  std::string strategy;
  std::uint64_t fingerprint = 0;  ///< of the StepGraph that it is for
  std::vector<Action> actions;    ///< by ValueId
  std::vector<SegmentRange> segments;
  Bytes budget = 0;              ///< 0: made without one
  Bytes predicted_peak = 0;      ///< all memory of the device, static bytes included
  Bytes unplanned_peak = 0;      ///< of the same step with everything kept
  double predicted_seconds = 0;  ///< of forward and backward
  double unplanned_seconds = 0;

  [[nodiscard]] bool keeps(ValueId value) const {
    const auto i = static_cast<std::size_t>(value);
    return i < actions.size() && std::holds_alternative<Keep>(actions[i]);
  }
  friend bool operator==(const MemoryPlan&, const MemoryPlan&) = default;
};

/// The plan with one value kept that was recomputed, or the other way round.
MemoryPlan flipped(MemoryPlan plan, ValueId value);

nlohmann::ordered_json to_json(const MemoryPlan& plan);
/// Throws UsageError naming what is missing or out of range.
MemoryPlan memory_plan_from_json(const nlohmann::ordered_json& json);

}  // namespace snug::plan
