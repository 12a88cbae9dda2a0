#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// Gives a value another action.
struct SetAction {
  ValueId value = kNoValue;
  Action action;
};
/// Adds a segment, or leaves it out when it is there.
struct ToggleSegment {
  SegmentRange range;
};
/// A small step of a search from one plan to another.
using Change = std::variant<SetAction, ToggleSegment>;

/// The plan with the change; its predictions are out of date. Nothing when it has that action already, or when the new
/// segment would cross another.
std::optional<MemoryPlan> changed(const MemoryPlan& plan, const Change& change);

/// Whether two segments can be in one plan: apart, or one inside the other.
bool nest_or_apart(const SegmentRange& a, const SegmentRange& b);

/// Segments that a search may add to any plan: up to `in_a_row` pieces of the step (chain_cuts with that limit), and
/// each operator with its readers. No range stands there twice.
std::vector<SegmentRange> likely_segments(const StepGraph& graph, std::size_t pieces, std::size_t in_a_row);

}  // namespace snug::plan
