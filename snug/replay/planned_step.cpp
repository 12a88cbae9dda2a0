#include "snug/replay/planned_step.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "snug/base/hash.h"
#include "snug/memory/tag.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/several_stages.h"

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

/// Whether there are others, and all have the same to plan.
bool all_plan_the_same(const std::vector<RecordedStep>& kinds, std::string_view strategy, Agreement& group) {
  if (&group == alone().get()) return false;
  std::string all(strategy);
  for (const RecordedStep& kind : kinds) all += to_json(kind.graph).dump();
  return all_have(std::array{as_number(hash_64(std::as_bytes(std::span(all))))}, group);
}

/// Of the first process what it has searched, as a text: empty for other strategies, and where that throws, which it
/// does in all.
plan::Planner searched_once(const plan::StepGraph& graph, std::string_view strategy, Agreement& group) {
  std::optional<plan::Planner> own;
  std::string found;
  try {
    if (group.is_first()) own.emplace(graph, strategy);
    if (own && own->trade_off() != nullptr) found = own->trade_off()->to_json().dump();
  } catch (...) {
    (void)group.from_first({});
    throw;
  }
  const std::string first = group.from_first(std::move(found));
  if (own) return *std::move(own);
  return first.empty() ? plan::Planner(graph, strategy)
                       : plan::Planner(graph, plan::TradeOff::from_json(nlohmann::json::parse(first)));
}

template <class First>
std::vector<PlannedStep> planned_by(std::vector<RecordedStep> kinds, const First& first, std::string_view strategy,
                                    Agreement& group) {
  kinds = each_a_kind(std::move(kinds));
  for (std::size_t device = 0; !kinds.empty() && device < kinds.front().passing.size(); ++device)
    count_state(kinds, device);
  std::vector<plan::StepGraph*> in_flight;
  for (RecordedStep& kind : kinds) {
    if (kind.kind == StepKind::MicroBatch) in_flight.push_back(&kind.graph);
  }
  if (in_flight.size() > 1) plan::divide_tiers(in_flight);
  const bool once = all_plan_the_same(kinds, strategy, group);
  const auto planner_of = [&](const plan::StepGraph& graph, const auto& by) {
    if constexpr (std::is_convertible_v<decltype(by), std::string_view>) {
      if (once) return searched_once(graph, by, group);
    }
    return plan::Planner(graph, by);
  };
  std::vector<PlannedStep> all;
  for (RecordedStep& kind : kinds) {
    plan::Planner planner = all.empty()                         ? planner_of(kind.graph, first)
                            : kind.kind == StepKind::Evaluation ? plan::Planner(kind.graph, "none")
                                                                : planner_of(kind.graph, strategy);
    all.push_back({std::move(kind), std::move(planner)});
  }
  return all;
}

}  // namespace

std::vector<RecordedStep> each_a_kind(std::vector<RecordedStep> kinds) {
  std::vector<RecordedStep> all;
  for (RecordedStep& kind : kinds) {
    std::vector<plan::StepGraph> further = std::exchange(kind.further, {});
    const std::size_t first = all.size();
    all.push_back(std::move(kind));
    for (plan::StepGraph& graph : further) {
      RecordedStep other = all[first];
      other.graph = std::move(graph);
      all.push_back(std::move(other));
    }
  }
  return all;
}

std::vector<PlannedStep> planned(std::vector<RecordedStep> kinds, std::string_view strategy, Agreement& group) {
  return planned_by(std::move(kinds), strategy, strategy, group);
}

std::vector<PlannedStep> planned(std::vector<RecordedStep> kinds, const plan::MemoryPlan& first) {
  return planned_by(std::move(kinds), first, "optimal", *alone());
}

namespace {

/// Of those whose micro-batches are in flight at the same time, where there are several; copies of their graphs.
class Stages {
 public:
  explicit Stages(const std::vector<PlannedStep>& kinds) {
    for (const auto& [step, planner] : kinds) {
      if (step.kind == StepKind::MicroBatch) graphs_.push_back(step.graph);
    }
    if (graphs_.size() < 2) return;
    std::size_t next = 0;
    for (const auto& [step, planner] : kinds) {
      if (step.kind == StepKind::MicroBatch) all_.push_back({&graphs_[next++], &planner});
    }
  }
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;
  /// None where there is one at most.
  [[nodiscard]] const std::vector<plan::StageSteps>& all() const noexcept { return all_; }

 private:
  std::vector<plan::StepGraph> graphs_;
  std::vector<plan::StageSteps> all_;
};

}  // namespace

std::vector<plan::MemoryPlan> plan_all(const std::vector<PlannedStep>& kinds, const plan::Budgets& budgets) {
  std::vector<plan::MemoryPlan> plans;
  std::optional<DoesNotFit> refusal;
  const auto or_refused = [&](const auto& plan) {
    try {
      plan();
    } catch (const DoesNotFit& error) {
      const DoesNotFit::Floor &floor = error.floor(), *known = refusal ? &refusal->floor() : nullptr;
      if (known == nullptr || (floor.device == known->device && floor.floor > known->floor)) refusal.emplace(error);
    }
  };
  const Stages stages(kinds);
  const bool together = !stages.all().empty();
  std::vector<plan::MemoryPlan> of_stages;
  if (together) or_refused([&] { of_stages = plan::plan_stages(stages.all(), budgets); });
  std::size_t next = 0;
  for (const auto& [step, planner] : kinds) {
    if (!together || step.kind != StepKind::MicroBatch) {
      or_refused([&] { plans.push_back(planner.plan(step.graph, budgets)); });
    } else if (next < of_stages.size()) {
      plans.push_back(std::move(of_stages[next++]));
    }
  }
  if (!refusal) return plans;
  DoesNotFit::Floor floor = refusal->floor();
  if (floor.device.empty()) floor.unplanned_peak = unplanned_peak(kinds);
  throw DoesNotFit(std::move(floor));
}

plan::StepGraph graph_under(const std::vector<PlannedStep>& kinds, const std::vector<plan::MemoryPlan>& plans) {
  std::vector<plan::StepGraph> graphs;
  std::vector<plan::MemoryPlan> of_graphs;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    if (kinds[i].step.kind != StepKind::MicroBatch) continue;
    graphs.push_back(kinds[i].step.graph);
    of_graphs.push_back(plans[i]);
  }
  if (graphs.size() < 2 || kinds.front().step.kind != StepKind::MicroBatch) return kinds.front().step.graph;
  std::vector<plan::StepGraph*> all;
  for (plan::StepGraph& graph : graphs) all.push_back(&graph);
  plan::set_others_held(all, of_graphs);
  return std::move(graphs.front());
}

Bytes unplanned_peak(const std::vector<PlannedStep>& kinds) {
  Bytes highest = 0;
  for (const auto& [step, planner] : kinds) {
    if (step.kind != StepKind::Evaluation) highest = std::max(highest, plan::plan_none(step.graph).predicted_peak);
  }
  return highest;
}

Bytes highest_peak(const std::vector<plan::MemoryPlan>& plans) {
  Bytes highest = 0;
  for (const plan::MemoryPlan& plan : plans) highest = std::max(highest, plan.predicted_peak);
  return highest;
}

Bytes smallest_budget(const std::vector<PlannedStep>& kinds) {
  const Stages stages(kinds);
  Bytes most = stages.all().empty() ? 0 : plan::Budget::for_limit(1).floor_for(plan::floor_of_stages(stages.all()));
  for (const auto& [step, planner] : kinds) {
    if (step.kind == StepKind::MicroBatch && !stages.all().empty()) continue;
    most = std::max(most, plan::Budget::for_limit(1).floor_for(planner.floor(step.graph)));
  }
  return most;
}

}  // namespace snug::replay
