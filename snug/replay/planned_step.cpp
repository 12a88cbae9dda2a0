#include "snug/replay/planned_step.h"

#include <algorithm>
#include <utility>

#include "snug/memory/tag.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"

namespace snug::replay {
namespace {

/// The state that updates will make is there in all steps: counts the most that one of them knows of in those that know
/// of less. Of one device.
void count_state(std::vector<RecordedStep>& kinds, std::size_t device) {
  Bytes most = 0;
  const auto knows = [device](const RecordedStep& kind) {
    return device < kind.passing.size() && device <= kind.graph.parts.size();
  };
  for (const RecordedStep& kind : kinds) {
    if (knows(kind)) most = std::max(most, kind.passing[device].state_to_come);
  }
  for (RecordedStep& kind : kinds) {
    if (!knows(kind)) continue;
    const Bytes missing = most - std::exchange(kind.passing[device].state_to_come, most);
    kind.graph.add_static(device, static_cast<std::size_t>(memory::Tag::Optimizer), missing);
  }
}

template <class First>
std::vector<PlannedStep> planned_by(std::vector<RecordedStep> kinds, const First& first, std::string_view strategy) {
  for (std::size_t device = 0; !kinds.empty() && device < kinds.front().passing.size(); ++device)
    count_state(kinds, device);
  std::vector<PlannedStep> all;
  for (RecordedStep& kind : kinds) {
    plan::Planner planner = all.empty()                         ? plan::Planner(kind.graph, first)
                            : kind.kind == StepKind::Evaluation ? plan::Planner(kind.graph, "none")
                                                                : plan::Planner(kind.graph, strategy);
    all.push_back({std::move(kind), std::move(planner)});
  }
  return all;
}

}  // namespace

std::vector<PlannedStep> planned(std::vector<RecordedStep> kinds, std::string_view strategy) {
  return planned_by(std::move(kinds), strategy, strategy);
}

std::vector<PlannedStep> planned(std::vector<RecordedStep> kinds, const plan::MemoryPlan& first) {
  return planned_by(std::move(kinds), first, "optimal");
}

std::vector<plan::MemoryPlan> plan_all(const std::vector<PlannedStep>& kinds, const plan::Budgets& budgets) {
  std::vector<plan::MemoryPlan> plans;
  std::optional<DoesNotFit> refusal;
  for (const auto& [step, planner] : kinds) {
    try {
      plans.push_back(planner.plan(step.graph, budgets));
    } catch (const DoesNotFit& error) {
      const DoesNotFit::Floor &floor = error.floor(), *known = refusal ? &refusal->floor() : nullptr;
      if (known == nullptr || (floor.device == known->device && floor.floor > known->floor)) refusal.emplace(error);
    }
  }
  if (!refusal) return plans;
  DoesNotFit::Floor floor = refusal->floor();
  if (floor.device.empty())
    floor.unplanned_peak = plan::plan_none(kinds.front().step.graph).predicted_peak;  // which budgets are shares of
  throw DoesNotFit(std::move(floor));
}

Bytes highest_peak(const std::vector<plan::MemoryPlan>& plans) {
  Bytes highest = 0;
  for (const plan::MemoryPlan& plan : plans) highest = std::max(highest, plan.predicted_peak);
  return highest;
}

Bytes smallest_budget(const std::vector<PlannedStep>& kinds) {
  Bytes most = 0;
  for (const auto& [step, planner] : kinds)
    most = std::max(most, plan::Budget::for_limit(1).floor_for(planner.floor(step.graph)));
  return most;
}

}  // namespace snug::replay
