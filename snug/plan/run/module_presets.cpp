#include "snug/plan/run/module_presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/module_calls.h"

namespace snug::plan {

MemoryPlan plan_modules(const StepGraph& graph, std::span<const std::string> names) {
  MemoryPlan plan = plan_segments(graph, calls_of_modules(graph, names));
  plan.strategy = fmt::format("recompute_modules({})", fmt::join(names, ","));
  return plan;
}

MemoryPlan plan_module_outputs(const StepGraph& graph, std::span<const std::string> names) {
  const std::vector<SegmentRange> calls = calls_of_modules(graph, names);
  MemoryPlan plan = plan_segments(graph, calls);
  for (const SegmentRange& call : calls) {
    for (OpId op = call.begin; op < call.end; ++op) {
      for (const Output& out : graph.flow.outputs(op)) plan.actions[at(out.value)] = kRecompute;
    }
  }
  plan.strategy = fmt::format("recompute_outputs({})", fmt::join(names, ","));
  return predicted(graph, std::move(plan));
}

}  // namespace snug::plan
