#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// How many operators may run again in plans that a search looks at: more is no use to anybody, and slow to simulate.
std::int64_t most_replays(const StepGraph& graph);

/// How much a search may simulate: operators that run or are replayed, about a microsecond each.
struct Effort {
  std::int64_t left = 0;
};

/// How many plans one stage of a search may make and simulate, so that the time and the memory that a stage takes grow
/// no faster than the step: 2048 up to 4,000 operators, 64 from 125,000 on, and in between as many as simulate 8
/// million operators.
std::size_t plans_per_stage(const StepGraph& graph);

/// The plan, within_host(), with its predictions, unless it replays more than most_replays(). Takes from `effort` if
/// there is one.
std::optional<MemoryPlan> predicted_if_useful(const StepGraph& graph, MemoryPlan plan, Effort* effort = nullptr);

/// Those plans that are worth having, by falling peak: each has a smaller peak than all that are faster. Predictions
/// must be filled in.
std::vector<MemoryPlan> front_of(std::vector<MemoryPlan> plans);

/// Adds the plan to a front if it is worth having there, and what it makes useless goes. False: the front is as it was.
/// `plan` is not of the front itself.
bool join(std::vector<MemoryPlan>& front, const MemoryPlan& plan);

/// The fastest plan of a front with such a peak; there must be one.
const MemoryPlan& fastest_within(const std::vector<MemoryPlan>& front, Bytes peak);

/// How much longer the fastest plan takes than the lower bound, in shares of the unplanned step.
double gap_at(const StepGraph& graph, const std::vector<MemoryPlan>& front, Bytes peak);

/// Searches look for such gaps at so many levels between the lowest peak and the highest, and close those that are
/// worth it.
inline constexpr int kLevels = 24;
inline constexpr double kGapWorthIt = 0.01;

/// A front with more plans in its widest gaps: between two neighbours lies a plan that keeps part of what only the
/// faster one keeps, the dearest per byte first.
std::vector<MemoryPlan> with_gaps_filled(const StepGraph& graph, std::vector<MemoryPlan> front, Effort effort);

/// Local search: a front improved by keeping or dropping one more value of its plans, as long as that leads to plans
/// worth having.
std::vector<MemoryPlan> with_actions_changed(const StepGraph& graph, std::vector<MemoryPlan> front, Effort effort);

}  // namespace snug::plan
