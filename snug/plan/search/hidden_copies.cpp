#include "snug/plan/search/hidden_copies.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/run/staging.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

/// Memory for copies, in sizes of the largest value that is moved: there is more time to fetch.
struct Times {
  double leaving, arriving;
};
constexpr std::array kStagings = {Times{0.25, 0.25}, Times{1, 0.25}, Times{2, 0.25}, Times{2, 1},
                                  Times{4, 0.25},    Times{4, 1},    Times{4, 2}};

Bytes largest_moved(const StepGraph& graph, const MemoryPlan& plan) {
  Bytes largest = 0;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (is_moved(plan.action(v))) largest = std::max(largest, graph.step_bytes(v));
  }
  return largest;
}

constexpr std::size_t kPlansFilled = 32, kFewFilled = 3;
constexpr std::size_t kManyOps = 1000;  // whose copies take long to put in order

/// When autograd first saves each value, in seconds after the step's beginning; infinite where it never does.
std::vector<double> first_saves(const StepGraph& graph) {
  std::vector<double> saves(graph.values.size(), std::numeric_limits<double>::infinity());
  double now = 0;
  for (const Event& event : graph.events) {
    now += event.seconds;
    if (event.kind == Event::Kind::Save) saves[at(event.id)] = std::min(saves[at(event.id)], now);
  }
  return saves;
}

/// Copies to the host one after the other, in the order in which they begin.
class OutgoingQueue {
 public:
  /// `late`: by as much as it takes to copy so many bytes.
  OutgoingQueue(const StepGraph& graph, Bytes late)
      : graph_(graph), cost_(*graph.moves.to(graph.moves.overlapping())), most_late_(cost_.out(late)) {}

  /// False, and it is not in the queue, where a copy would be over too late after it could begin.
  bool add(ValueId value, double begins) {
    const auto place = std::ranges::upper_bound(queue_, begins, {}, &Copy::begins);
    const auto added = queue_.insert(place, {value, begins});
    double free = 0;
    for (const Copy& copy : queue_) {
      free = std::max(free, copy.begins) + cost_.out(graph_.step_bytes(copy.value));
      if (free <= copy.begins + most_late_) continue;
      queue_.erase(added);
      return false;
    }
    return true;
  }

 private:
  struct Copy {
    ValueId value;
    double begins;
  };
  const StepGraph& graph_;
  const MoveCost& cost_;
  double most_late_;
  std::vector<Copy> queue_;
};

struct MovedIfThereIsTime {
  ValueId value;
  double seconds_per_byte;  // that are saved where it is not made again
};

std::vector<MovedIfThereIsTime> dearest_first(const StepGraph& graph, const MemoryPlan& plan) {
  const Simulation run = simulate(graph, plan);
  std::vector<MovedIfThereIsTime> candidates;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (!may_move(graph, v) || plan.action(v) != kRecompute) continue;
    const OpId op = graph.flow.producer(v);
    const double again = graph.ops[at(op)].seconds * run.replays[at(op)];
    if (again > 0) candidates.push_back({v, again / static_cast<double>(graph.step_bytes(v))});
  }
  std::ranges::stable_sort(candidates, std::ranges::greater(), &MovedIfThereIsTime::seconds_per_byte);
  return candidates;
}

}  // namespace

StepGraph with_quicker_copies(const StepGraph& graph, double share) {
  StepGraph quicker = graph;
  for (std::optional<MoveCost>* const cost : {&quicker.moves.host, &quicker.moves.disk}) {
    if (!*cost || !(*cost)->overlaps) continue;
    (*cost)->out_seconds_per_byte *= share;
    (*cost)->in_seconds_per_byte *= share;
    (*cost)->seconds_per_copy *= share;
  }
  return quicker;
}

std::vector<MemoryPlan> offloading_plans(const StepGraph& graph) {
  constexpr int kLevelsTried = 16;
  const MemoryPlan none = plan_none(graph);
  Bytes all = 0;
  for (ValueId v = 0; v < graph.flow.values(); ++v) all += may_move(graph, v) ? graph.step_bytes(v) : 0;
  std::vector<MemoryPlan> plans;
  for (int level = kLevelsTried; level > 0 && all > 0; --level) {
    MemoryPlan plan = none;
    Bytes moved = 0;
    for (ValueId v = 0; v < graph.flow.values() && moved < all / kLevelsTried * level; ++v) {  // in their order
      if (!may_move(graph, v)) continue;
      plan.actions[at(v)] = {graph.moves.overlapping()};
      moved += graph.step_bytes(v);
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

std::vector<MemoryPlan> with_links_filled(const StepGraph& graph, const std::vector<MemoryPlan>& plans) {
  const std::vector<double> saves = first_saves(graph);
  Bytes largest = 0;
  for (ValueId v = 0; v < graph.flow.values(); ++v)
    largest = std::max(largest, may_move(graph, v) ? graph.step_bytes(v) : 0);
  std::vector<MemoryPlan> filled;
  const std::size_t stride = 1 + plans.size() / (graph.ops.size() > kManyOps ? kFewFilled : kPlansFilled);
  for (std::size_t i = 0; i < plans.size(); i += stride) {
    MemoryPlan bare = plans[i];
    bare.staging = {};
    std::ranges::replace_if(bare.actions, is_moved, kRecompute);
    const std::vector<MovedIfThereIsTime> candidates = dearest_first(graph, bare);
    for (const Bytes leaving : {largest / 4, largest, 4 * largest}) {
      OutgoingQueue queue(graph, leaving);
      MemoryPlan plan = bare;
      for (const MovedIfThereIsTime& c : candidates) {
        if (queue.add(c.value, saves[at(c.value)])) plan.actions[at(c.value)] = {graph.moves.overlapping()};
      }
      filled.push_back(std::move(plan));
    }
  }
  return filled;
}

std::vector<MemoryPlan> with_copies_staged(const StepGraph& graph, std::vector<MemoryPlan> plans, Effort& effort) {
  const std::size_t count = plans.size();
  for (std::size_t i = 0; i < count && effort.left > 0; ++i) {
    const Bytes largest = largest_moved(graph, plans[i]);
    if (largest == 0) continue;
    for (const FetchFrom from : {FetchFrom::ThePeak, FetchFrom::TheBeginning}) {
      MemoryPlan more = staged(graph, plans[i], largest, largest, from);
      effort.left -= static_cast<std::int64_t>(graph.ops.size());
      for (const auto [leaving, arriving] : kStagings) {
        more.staging.leaving = static_cast<Bytes>(leaving * static_cast<double>(largest));
        more.staging.arriving = static_cast<Bytes>(arriving * static_cast<double>(largest));
        if (auto useful = predicted_if_useful(graph, more, &effort)) plans.push_back(std::move(*useful));
      }
    }
  }
  return plans;
}

}  // namespace snug::plan
