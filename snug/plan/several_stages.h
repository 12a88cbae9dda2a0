#pragma once

#include <vector>

#include "snug/plan/budget.h"
#include "snug/plan/planner.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"

namespace snug::plan {

/// One kind of micro-batches of a step, as those of one of the stages that a process has.
struct StageSteps {
  StepGraph* graph = nullptr;  ///< whose others_held is set to what those of the other kinds hold
  const Planner* planner = nullptr;
};

/// Plans for all kinds, whose micro-batches are in flight at the same time: each saves the same share of what it
/// can, the smallest with which all fit together. Without a budget each has the plan that its planner makes then. Host
/// and disk are planned for each kind by itself, by its part of their budgets (divide_tiers). Throws DoesNotFit, of the
/// kind that takes most, when not even all that each can save is enough. Deterministic.
std::vector<MemoryPlan> plan_stages(const std::vector<StageSteps>& stages, const Budgets& budgets);

/// The highest peak of all kinds when each saves what it can. Sets their graphs as for these plans.
Bytes floor_of_stages(const std::vector<StageSteps>& stages);

/// Divides the budgets of host and disk among kinds whose micro-batches are in flight at the same time, by the bytes
/// that each could move: then no plans of them together take more. Before they are planned, once.
void divide_tiers(const std::vector<StepGraph*>& graphs);

/// Sets what others hold as it is under these plans, and what they hold under any.
void set_others_held(const std::vector<StepGraph*>& graphs, const std::vector<MemoryPlan>& plans);
/// The same when everything is kept.
void keep_everything(const std::vector<StepGraph*>& graphs);

}  // namespace snug::plan
