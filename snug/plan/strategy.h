#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/plan/budget.h"
#include "snug/plan/memory_plan.h"
#include "snug/plan/step_graph.h"

namespace snug::plan {

/// The names that make_plan takes.
std::vector<std::string> strategies();

/// Makes a plan by a strategy's name. Without a budget, "greedy" keeps everything. Throws DoesNotFit when the strategy
/// finds no plan under the budget, UsageError for an unknown name.
MemoryPlan make_plan(const StepGraph& graph, std::string_view strategy, std::optional<Budget> budget);

}  // namespace snug::plan
