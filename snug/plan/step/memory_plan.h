#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/json_field.h"
#include "snug/plan/step/action.h"
#include "snug/plan/step/ids.h"

namespace snug::plan {

/// Operators [begin, end) that are replayed together. Ranges nest or are disjoint.
struct SegmentRange {
  OpId begin = 0;
  OpId end = 0;
  friend bool operator==(const SegmentRange&, const SegmentRange&) = default;
};

/// Memory for copies that the step does not wait for.
struct Staging {
  Bytes leaving = 0;       ///< of values on their way to the host: with more, the step waits for the oldest of them
  Bytes arriving = 0;      ///< of values that are fetched before backward asks for them
  std::int32_t first = 0;  ///< so many tensors are unpacked before one is
  std::vector<ValueId> order{};  ///< in which they are: see staged()
  friend bool operator==(const Staging&, const Staging&) = default;
};

/// What a plan takes of a further device that has a budget of its own.
struct PlannedPart {
  std::string device;
  Bytes budget = 0;
  Bytes predicted_peak = 0;  ///< all memory of the device, static bytes included
  Bytes unplanned_peak = 0;
  friend bool operator==(const PlannedPart&, const PlannedPart&) = default;
};

/// What to do with every value of one recorded step, and what that is predicted to cost.
struct MemoryPlan {
  std::string strategy;
  std::uint64_t fingerprint = 0;  ///< of the StepGraph that it is for
  std::vector<Action> actions;    ///< by ValueId
  std::vector<SegmentRange> segments;
  Staging staging{};
  Bytes budget = 0;              ///< 0: made without one
  Bytes predicted_peak = 0;      ///< all memory of the device, static bytes included
  Bytes unplanned_peak = 0;      ///< of the same step with everything kept
  double predicted_seconds = 0;  ///< of forward and backward
  double unplanned_seconds = 0;
  std::vector<PlannedPart> others;  ///< the bytes above are of the step's first device

  /// Of a value that it does not know: made again.
  [[nodiscard]] Action action(ValueId value) const {
    return at(value) < actions.size() ? actions[at(value)] : kRecompute;
  }
  [[nodiscard]] bool keeps(ValueId value) const { return action(value) == kKeep; }
  friend bool operator==(const MemoryPlan&, const MemoryPlan&) = default;
};

/// One line without an end of line: strategy, peak, seconds and, where there is one, the budget.
std::ostream& operator<<(std::ostream& out, const MemoryPlan& plan);

/// The plan with another action for one value; its predictions are out of date.
MemoryPlan with_action(MemoryPlan plan, ValueId value, Action action);

nlohmann::ordered_json to_json(const MemoryPlan& plan);
/// Refuses, as its source says, what is missing or out of range.
MemoryPlan memory_plan_from(const JsonField& json);
/// The same, as a UsageError.
MemoryPlan memory_plan_from_json(const nlohmann::json& json);

/// What to do about a plan that is damaged.
inline constexpr const char* kPlanCure = "make it again with snug plan --out";

}  // namespace snug::plan
