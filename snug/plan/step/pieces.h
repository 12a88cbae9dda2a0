#pragma once

#include <vector>

#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// Positions p such that at most `crossing` values that operators before p made are read by operators from p on: where
/// a step can be cut into a chain. 0 and the number of operators are always among them.
std::vector<OpId> cut_points(const StepGraph& graph, int crossing = 1);

/// At most `limit` + 1 positions, 0 and the number of operators among them, that cut the step into a chain of pieces
/// which hand little on: for a step of repeated blocks between the blocks or inside of them, else where a single value
/// crosses. Values with readers far away (masks, skip connections) do not count. No position separates an operator that
/// writes in place from the one that made what it writes to.
std::vector<OpId> chain_cuts(const StepGraph& graph, std::size_t limit);

/// The blocks of a model, found without a word from it: the longest run that repeats with the same operators of pieces
/// between positions that one value crosses, a stage's input too and those with readers far away not; and such runs
/// before and behind it whose blocks save a quarter as much or more (encoder and decoder, a model on two devices). In
/// their order, with what is between runs left out. Empty when nothing repeats.
std::vector<SegmentRange> repeated_blocks(const StepGraph& graph);

}  // namespace snug::plan
