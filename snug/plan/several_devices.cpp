#include "snug/plan/several_devices.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

// Each round plans one device anew. Those that have not come together by then go round in circles.
constexpr int kRoundsPerDevice = 4;

/// One device with a budget.
struct Place {
  StepGraph graph;  // as this device sees it
  Budget budget;
  Bytes squeezed = 0;  // of the budget: what plans for other devices have cost it, after it was planned
};

std::vector<Place> places_of(const StepGraph& graph, const Budgets& budgets) {
  std::vector<Place> places;
  if (budgets.own) places.push_back({graph, *budgets.own});
  for (const auto& [device, budget] : budgets.others) {
    if (const DevicePart* part = graph.part_of(device)) places.push_back({seen_from(graph, *part), budget});
  }
  return places;
}

/// The first device's, whose figures are the graph's own.
bool is_first(const Place& place, const StepGraph& graph) { return place.graph.devices == graph.devices; }

Bytes excess(const Place& place, const MemoryPlan& plan) {
  return simulate(place.graph, plan).peak - place.budget.for_blocks();
}

/// Where the plan takes too much by most; nullptr: nowhere.
Place* most_over(std::vector<Place>& places, const MemoryPlan& plan) {
  Place* worst = nullptr;
  Bytes most = 0;
  for (Place& place : places) {
    if (const Bytes over = excess(place, plan); over > most) {
      most = over;
      worst = &place;
    }
  }
  return worst;
}

bool cross(const SegmentRange& a, const SegmentRange& b) {
  const bool apart = a.end <= b.begin || b.end <= a.begin;
  const bool nested = (a.begin <= b.begin && b.end <= a.end) || (b.begin <= a.begin && a.end <= b.end);
  return !apart && !nested;
}

/// Those of `newer`, and of `older` those that go with them.
std::vector<SegmentRange> together(const std::vector<SegmentRange>& older, std::vector<SegmentRange> newer) {
  const std::size_t fixed = newer.size();
  for (const SegmentRange& range : older) {
    const auto first = newer.begin(), last = newer.begin() + static_cast<std::ptrdiff_t>(fixed);
    const auto clashes = [&](const SegmentRange& other) { return other == range || cross(other, range); };
    if (std::none_of(first, last, clashes)) newer.push_back(range);
  }
  return newer;
}

/// `plan` with other actions for the values that are on the place's device, such that it fits there.
MemoryPlan planned_again(const Place& place, const MemoryPlan& plan, SearchOptions options) {
  StepGraph with_others = place.graph;
  const auto is_here = [&](std::size_t v) { return place.graph.values[v].device == 0; };
  for (std::size_t v = 0; v < with_others.values.size(); ++v) {
    const auto value = static_cast<ValueId>(v);
    if (is_here(v) || !has_choice(place.graph, value)) continue;
    with_others.values[v].must = decided(place.graph, plan, value) == kKeep ? Must::Keep : Must::Recompute;
  }
  Budget target = place.budget;
  target.limit -= place.squeezed;
  MemoryPlan found = TradeOff(with_others, options).best(with_others, target);
  for (std::size_t v = 0; v < found.actions.size(); ++v) {
    if (!is_here(v)) found.actions[v] = plan.action(static_cast<ValueId>(v));
  }
  // Ranges of the plan for other devices are of operators there, mostly. Where they are not, they may do harm here.
  MemoryPlan with_both = found;
  with_both.segments = together(plan.segments, found.segments);
  return excess(place, with_both) <= 0 ? with_both : found;
}

/// With the name of its device, where that is not the first.
DoesNotFit refusal_of(DoesNotFit::Floor floor, const Place& place, const StepGraph& graph) {
  if (!is_first(place, graph)) floor.device = place.graph.devices.front();
  return DoesNotFit(std::move(floor));
}

DoesNotFit too_small(const Place& place, const MemoryPlan& plan, const StepGraph& graph) {
  return refusal_of(floor_of(place.graph, predicted(place.graph, plan), place.budget), place, graph);
}

/// What the plan takes on each device.
MemoryPlan predicted_everywhere(const StepGraph& graph, MemoryPlan plan, const std::vector<Place>& places) {
  const Simulation run = simulate(graph, plan);
  plan.predicted_peak = run.peak;
  plan.predicted_seconds = run.seconds;
  plan.others.clear();
  for (const Place& place : places) {
    if (is_first(place, graph)) continue;
    plan.others.push_back({.device = place.graph.devices.front(),
                           .budget = place.budget.limit,
                           .predicted_peak = simulate(place.graph, plan).peak,
                           .unplanned_peak = plan_none(place.graph).predicted_peak});
  }
  return plan;
}

}  // namespace

MemoryPlan plan_everywhere(const StepGraph& graph, MemoryPlan first, const Budgets& budgets, SearchOptions options) {
  std::vector<Place> places = places_of(graph, budgets);
  MemoryPlan plan = std::move(first);
  std::vector<const Place*> planned;
  for (std::size_t round = 0; round < kRoundsPerDevice * places.size(); ++round) {
    Place* const worst = most_over(places, plan);
    if (worst == nullptr) return predicted_everywhere(graph, std::move(plan), places);
    if (std::ranges::find(planned, worst) != planned.end()) worst->squeezed += excess(*worst, plan);
    planned.push_back(worst);
    try {
      MemoryPlan better = planned_again(*worst, plan, options);
      plan.actions = std::move(better.actions);
      plan.segments = std::move(better.segments);
    } catch (const DoesNotFit& error) {
      DoesNotFit::Floor floor = error.floor();
      floor.budget = worst->budget.limit;
      floor.floor += worst->squeezed;
      throw refusal_of(std::move(floor), *worst, graph);
    }
  }
  if (const Place* worst = most_over(places, plan)) throw too_small(*worst, plan, graph);
  return predicted_everywhere(graph, std::move(plan), places);
}

MemoryPlan checked_everywhere(const StepGraph& graph, MemoryPlan plan, const Budgets& budgets) {
  std::vector<Place> places = places_of(graph, budgets);
  if (const Place* worst = most_over(places, plan)) throw too_small(*worst, plan, graph);
  return predicted_everywhere(graph, std::move(plan), places);
}

}  // namespace snug::plan
