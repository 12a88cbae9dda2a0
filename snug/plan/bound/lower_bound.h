#pragma once

#include "snug/base/bytes.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// What no plan can beat, whatever it keeps, moves and recomputes: the certificate beside a plan. Where the graph knows
/// of no place to move to it does not hold for plans that move all the same, which may be better.
struct LowerBound {
  Bytes peak = 0;           ///< no plan has a smaller one, static bytes included
  double step_seconds = 0;  ///< no plan with a peak within the budget has less; infinite when none has such a peak
};

/// Where several kinds of micro-batches are in flight it holds whatever the plans of the other kinds are.
/// For plans whose peak is at most `peak` (budget less reserve). Follows from what must be in memory at single moments
/// of the step (see Relaxation, unavoidable_bytes), so it is not always reached. Pure.
LowerBound lower_bound(const StepGraph& graph, Bytes peak);

/// The peak that no plan of this kind goes below as long as the others hold what they hold (StepGraph::others_held).
Bytes lower_bound_of_peak(const StepGraph& graph);

/// How far a plan is from the bound: extra time of the plan over that of the bound, less one. 0 when neither has any,
/// infinite when only the plan has, or the bound says that nothing fits.
double optimality_gap(double plan_seconds, double bound_seconds, double unplanned_seconds);

}  // namespace snug::plan
