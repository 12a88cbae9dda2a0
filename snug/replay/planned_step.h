#pragma once

#include <string_view>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/budget.h"
#include "snug/plan/planner.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/replay/agreement.h"
#include "snug/replay/record_step.h"

namespace snug::replay {

/// A recorded step, and the planner for its graph.
struct PlannedStep {
  RecordedStep step;
  plan::Planner planner;
};

/// Each of the graphs of a step of several micro-batches (RecordedStep::further) as a kind of its own, behind it.
std::vector<RecordedStep> each_a_kind(std::vector<RecordedStep> kinds);

/// Planners by a strategy (see plan::Planner) for all kinds of steps of one run. The state that its updates will make
/// is counted in each of them. A pass without a backward one has nothing to decide, and keeps everything. Where all of
/// the group have the same graphs, which all of them call this with, the first process searches plans for all:
/// elsewhere a search would find the same, on cores that it may have to share.
std::vector<PlannedStep> planned(std::vector<RecordedStep> kinds, std::string_view strategy,
                                 Agreement& group = *alone());
/// The same with a plan for the first of them; for others that go backward, "optimal" makes one.
std::vector<PlannedStep> planned(std::vector<RecordedStep> kinds, const plan::MemoryPlan& first);

/// Their plans, in the same order. Throws DoesNotFit when one of them does not fit, with the highest floor of those.
std::vector<plan::MemoryPlan> plan_all(const std::vector<PlannedStep>& kinds, const plan::Budgets& budgets);

/// The first one's graph, of several kinds of micro-batches with what the others hold under these plans (plan_all's):
/// all that is said of the first plan, such as its timeline and bounds, is of this graph.
plan::StepGraph graph_under(const std::vector<PlannedStep>& kinds, const std::vector<plan::MemoryPlan>& plans);

/// The smallest budget that all of them have plans for.
Bytes smallest_budget(const std::vector<PlannedStep>& kinds);

/// What those of them that train take without a plan: budgets in percent are shares of it.
Bytes unplanned_peak(const std::vector<PlannedStep>& kinds);

/// Of a run whose steps follow these.
Bytes highest_peak(const std::vector<plan::MemoryPlan>& plans);

}  // namespace snug::replay
