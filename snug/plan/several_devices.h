#pragma once

#include "snug/plan/budget.h"
#include "snug/plan/step/memory_plan.h"
#include "snug/plan/step/step_graph.h"
#include "snug/plan/trade_off.h"

namespace snug::plan {

/// A plan for a step whose values are on several devices with a budget each, from one for its first device: values
/// are planned device by device, with what is decided of those elsewhere, until all fit together. `first`: a plan that
/// fits the first device's. Devices whose memory the graph has no figures of are left to evictions. Throws
/// DoesNotFit, naming the device, where no plan that is found fits. Pure and deterministic.
MemoryPlan plan_everywhere(const StepGraph& graph, MemoryPlan first, const Budgets& budgets,
                           SearchOptions options = {});

/// The plan as it is, which has nothing else to offer, with what it takes of further devices. Throws DoesNotFit, naming
/// the device, where that is too much.
MemoryPlan checked_everywhere(const StepGraph& graph, MemoryPlan plan, const Budgets& budgets);

}  // namespace snug::plan
