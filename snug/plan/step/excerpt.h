#pragma once

#include <span>
#include <vector>

#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// One stretch of a step as a step of its own: its operators and what happens to the values that they make. Values
/// from outside are leaves; what belongs to no value is left out: other allocations, which may be those of other
/// threads, and static bytes. So no level is below zero.
struct Excerpt {
  StepGraph graph;
  OpId begin = 0;                   ///< of the whole step
  std::vector<ValueId> values;      ///< in the whole step, by value of the excerpt
  std::vector<std::size_t> events;  ///< position in the whole step, by event of the excerpt
  std::vector<char> leaving;        ///< by value of the excerpt: operators after it read it
};

/// The stretches between consecutive cuts, the first of which is 0 and the last the number of operators.
std::vector<Excerpt> excerpts(const StepGraph& graph, std::span<const OpId> cuts);

}  // namespace snug::plan
