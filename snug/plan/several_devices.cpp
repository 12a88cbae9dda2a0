#include "snug/plan/several_devices.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

#include "snug/plan/does_not_fit.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

// Each round plans one device anew. Those that have not come together by then go round in circles.
constexpr int kRoundsPerDevice = 4;
constexpr std::size_t kKept = 8;  // of the searches of a step

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

/// What operators make of values on another device. Where all of them are kept, no device's replays reach into those of
/// another.
std::vector<ValueId> crossings_of(const StepGraph& graph) {
  std::vector<ValueId> crossings;
  const auto device = [&](ValueId v) { return graph.values[at(v)].device; };
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    for (const Output& out : graph.flow.outputs(op)) {
      const auto elsewhere = [&](ValueId v) { return !graph.flow.is_leaf(v) && device(v) != device(out.value); };
      const bool crosses = std::ranges::any_of(graph.flow.inputs(op), elsewhere);
      if (crosses && has_choice(graph, out.value)) crossings.push_back(out.value);
    }
  }
  return crossings;
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

/// Plans device by device, until all fit together.
class DeviceByDevice {
 public:
  /// `held`: values that every plan keeps.
  DeviceByDevice(const StepGraph& graph, const Budgets& budgets, DeviceSearches& searches, SearchOptions options,
                 std::vector<ValueId> held)
      : graph_(graph),
        searches_(searches),
        options_(options),
        held_(std::move(held)),
        places_(places_of(graph, budgets)) {}

  MemoryPlan from(MemoryPlan plan) {
    for (const ValueId v : held_) plan.actions[at(v)] = kKeep;
    std::vector<const Place*> planned;
    for (std::size_t round = 0; round < kRoundsPerDevice * places_.size(); ++round) {
      Place* const worst = most_over(places_, plan);
      if (worst == nullptr) return predicted_everywhere(graph_, std::move(plan), places_);
      if (std::ranges::find(planned, worst) != planned.end()) worst->squeezed += excess(*worst, plan);
      planned.push_back(worst);
      try {
        MemoryPlan better = planned_again(*worst, plan);
        plan.actions = std::move(better.actions);
        plan.segments = std::move(better.segments);
        if (is_first(*worst, graph_)) plan.staging = std::move(better.staging);  // others have none
      } catch (const DoesNotFit& error) {
        // What the plans of other devices make it take is the step's, too.
        DoesNotFit::Floor floor = error.floor();
        floor.budget = worst->budget.limit;
        floor.floor += worst->squeezed;
        floor.step_bytes += worst->squeezed;
        throw refusal_of(std::move(floor), *worst, graph_);
      }
    }
    if (const Place* worst = most_over(places_, plan)) throw too_small(*worst, plan, graph_);
    return predicted_everywhere(graph_, std::move(plan), places_);
  }

 private:
  /// `plan` with other actions for the values that are on the place's device, such that it fits there.
  [[nodiscard]] MemoryPlan planned_again(const Place& place, const MemoryPlan& plan) const {
    StepGraph with_others = place.graph;
    const auto is_here = [&](std::size_t v) { return place.graph.values[v].device == 0; };
    for (std::size_t v = 0; v < with_others.values.size(); ++v) {
      const auto value = static_cast<ValueId>(v);
      if (is_here(v) || !has_choice(place.graph, value)) continue;
      // What is moved is fetched, without an operator.
      const bool again = decided(place.graph, plan, value).home == Home::Nowhere;
      with_others.values[v].must = again ? Must::Recompute : Must::Keep;
    }
    for (const ValueId v : held_) with_others.values[at(v)].must = Must::Keep;
    Budget target = place.budget;
    target.limit -= place.squeezed;
    MemoryPlan found = searches_.of(with_others, options_)->best(with_others, target);
    for (std::size_t v = 0; v < found.actions.size(); ++v) {
      if (!is_here(v)) found.actions[v] = plan.action(static_cast<ValueId>(v));
    }
    for (const ValueId v : held_) found.actions[at(v)] = kKeep;
    // Ranges of the plan for other devices are of operators there, mostly. Where they are not, they may do harm here.
    MemoryPlan with_both = found;
    with_both.segments = together(plan.segments, found.segments);
    return excess(place, with_both) <= 0 ? with_both : found;
  }

  const StepGraph& graph_;
  DeviceSearches& searches_;
  SearchOptions options_;
  std::vector<ValueId> held_;
  std::vector<Place> places_;
};

}  // namespace

std::shared_ptr<const TradeOff> DeviceSearches::of(const StepGraph& graph, SearchOptions options) {
  std::vector<Must> musts;
  musts.reserve(graph.values.size());
  for (const ValueInfo& value : graph.values) musts.push_back(value.must);
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const Search& s) { return s.device == graph.devices.front() && s.musts == musts; };
  if (const auto found = std::ranges::find_if(latest_, is_it); found != latest_.end()) {
    latest_.splice(latest_.begin(), latest_, found);
  } else {
    latest_.push_front({graph.devices.front(), std::move(musts), std::make_shared<const TradeOff>(graph, options)});
    ++made_;
    if (latest_.size() > kKept) latest_.pop_back();
  }
  return latest_.front().found;
}

std::size_t DeviceSearches::made() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

MemoryPlan plan_everywhere(const StepGraph& graph, MemoryPlan first, const Budgets& budgets, DeviceSearches& searches,
                           SearchOptions options) {
  const auto attempt = [&](std::vector<ValueId> held) -> std::variant<MemoryPlan, DoesNotFit> {
    try {
      return DeviceByDevice(graph, budgets, searches, options, std::move(held)).from(first);
    } catch (const DoesNotFit& refusal) {
      return refusal;
    }
  };
  const auto free = attempt({});
  const auto* const plan = std::get_if<MemoryPlan>(&free);
  const std::vector<ValueId> crossings = crossings_of(graph);
  const auto kept = [&](ValueId v) { return plan != nullptr && decided(graph, *plan, v) == kKeep; };
  // A second attempt would be the same.
  if (plan != nullptr && std::ranges::all_of(crossings, kept)) return *plan;
  if (plan == nullptr && crossings.empty()) throw std::get<DoesNotFit>(free);
  const auto held = attempt(crossings);
  const auto* const other = std::get_if<MemoryPlan>(&held);
  if (plan != nullptr && other != nullptr) return other->predicted_seconds < plan->predicted_seconds ? *other : *plan;
  if (plan != nullptr || other != nullptr) return plan != nullptr ? *plan : *other;
  const auto &of_free = std::get<DoesNotFit>(free), &of_held = std::get<DoesNotFit>(held);
  throw of_held.floor().floor < of_free.floor().floor ? of_held : of_free;
}

MemoryPlan checked_everywhere(const StepGraph& graph, MemoryPlan plan, const Budgets& budgets) {
  std::vector<Place> places = places_of(graph, budgets);
  if (const Place* worst = most_over(places, plan)) throw too_small(*worst, plan, graph);
  return predicted_everywhere(graph, std::move(plan), places);
}

}  // namespace snug::plan
