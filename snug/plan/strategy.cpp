#include "snug/plan/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "snug/base/errors.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/greedy.h"
#include "snug/plan/presets.h"
#include "snug/plan/simulator.h"

namespace snug::plan {

std::vector<std::string> strategies() { return {"none", "every_block", "sqrt", "greedy"}; }

MemoryPlan make_plan(const StepGraph& graph, std::string_view strategy, std::optional<Budget> budget) {
  const MemoryPlan none = plan_none(graph);
  MemoryPlan plan;
  if (strategy == "none") {
    plan = none;
  } else if (strategy == "every_block") {
    plan = plan_every_block(graph);
  } else if (strategy == "sqrt") {
    plan = plan_sqrt(graph);
  } else if (strategy == "greedy") {
    plan = budget ? plan_greedy(graph, *budget) : none;
    plan.strategy = "greedy";
  } else {
    throw UsageError(
        fmt::format("plan: unknown strategy \"{}\"; there are {}", strategy, fmt::join(strategies(), ", ")));
  }
  plan.budget = budget ? budget->device : 0;
  plan.unplanned_peak = none.predicted_peak;
  plan.unplanned_seconds = graph.step_seconds;
  if (budget && plan.predicted_peak > budget->for_blocks()) {
    const OpId op = simulate(graph, plan).peak_op;
    throw DoesNotFit({budget->device, budget->floor_for(plan.predicted_peak), graph.static_by_tag,
                      plan.predicted_peak - graph.static_bytes,
                      op == kNoOp ? std::string() : graph.ops[static_cast<std::size_t>(op)].name, plan.strategy});
  }
  return plan;
}

}  // namespace snug::plan
