#include "snug/plan/greedy.h"

#include <algorithm>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "snug/plan/does_not_fit.h"
#include "snug/plan/presets.h"
#include "snug/plan/simulator.h"

namespace snug::plan {
namespace {

constexpr Bytes kSmallestWorthIt = 4_KiB;
constexpr std::size_t kPrefixesTried = 64;

std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

/// The operators that would run to make `value` again while `kept` values are there.
std::vector<OpId> recovery(const Dataflow& flow, const std::vector<char>& kept, ValueId value,
                           std::vector<std::uint32_t>& seen, std::uint32_t epoch) {
  std::vector<OpId> ops;
  std::vector<OpId> stack{flow.producer(value)};
  seen[at(stack.back())] = epoch;
  while (!stack.empty()) {
    const OpId op = stack.back();
    stack.pop_back();
    ops.push_back(op);
    for (ValueId input : flow.inputs(op)) {
      if (flow.is_leaf(input) || (input != value && kept[at(input)])) continue;
      const OpId producer = flow.producer(input);
      if (seen[at(producer)] == epoch) continue;
      seen[at(producer)] = epoch;
      stack.push_back(producer);
    }
  }
  return ops;
}

/// Saved values in the order in which it is best to drop them: cheapest seconds per byte first, counting what earlier
/// drops make dearer. Costs only grow, so a stale entry of the queue is looked at again when it comes up.
std::vector<ValueId> drop_order(const StepGraph& graph) {
  const Dataflow& flow = graph.flow;
  std::vector<char> kept(graph.values.size(), 0);
  for (std::size_t v = 0; v < kept.size(); ++v) kept[v] = graph.values[v].saved;
  std::vector<std::uint32_t> seen(graph.ops.size(), 0);
  std::uint32_t epoch = 0;
  const auto cost = [&](ValueId v) {
    double seconds = 0;
    for (OpId op : recovery(flow, kept, v, seen, ++epoch)) seconds += graph.ops[at(op)].seconds;
    return seconds / static_cast<double>(graph.values[at(v)].bytes);
  };
  using Entry = std::pair<double, ValueId>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  for (ValueId v = 0; v < flow.values(); ++v) {
    if (!flow.is_leaf(v) && kept[at(v)] && graph.values[at(v)].bytes >= kSmallestWorthIt) queue.emplace(cost(v), v);
  }
  std::vector<ValueId> order;
  while (!queue.empty()) {
    const auto [stale, v] = queue.top();
    queue.pop();
    const double now = cost(v);
    if (!queue.empty() && now > queue.top().first * 1.0001) {
      queue.emplace(now, v);
      continue;
    }
    kept[at(v)] = 0;
    order.push_back(v);
  }
  return order;
}

MemoryPlan drop_prefix(const StepGraph& graph, const MemoryPlan& all, std::span<const ValueId> order,
                       std::size_t count) {
  MemoryPlan plan = all;
  plan.strategy = "greedy";
  for (std::size_t i = 0; i < count; ++i) plan.actions[at(order[i])] = Recompute{};
  return predicted(graph, std::move(plan));
}

/// All plans that the search looks at, the cheapest in time first.
std::vector<MemoryPlan> candidates(const StepGraph& graph) {
  const MemoryPlan all = plan_none(graph);
  const std::vector<ValueId> order = drop_order(graph);
  std::vector<MemoryPlan> plans{all};
  const std::size_t step = std::max<std::size_t>(1, order.size() / kPrefixesTried);
  for (std::size_t count = step; count < order.size() + step; count += step) {
    plans.push_back(drop_prefix(graph, all, order, std::min(count, order.size())));
  }
  plans.push_back(plan_every_block(graph));
  plans.push_back(plan_sqrt(graph));
  std::ranges::stable_sort(plans, {}, &MemoryPlan::predicted_seconds);
  return plans;
}

/// Keeps again what still fits, the dearest to make again first.
MemoryPlan keep_what_fits(const StepGraph& graph, MemoryPlan plan, Bytes budget) {
  std::vector<ValueId> dropped;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (graph.values[at(v)].saved && !plan.keeps(v) && graph.values[at(v)].bytes > 0) dropped.push_back(v);
  }
  const auto gain = [&](ValueId v) {
    return graph.ops[at(graph.flow.producer(v))].seconds / static_cast<double>(graph.values[at(v)].bytes);
  };
  std::ranges::stable_sort(dropped, [&](ValueId a, ValueId b) { return gain(a) > gain(b); });
  for (ValueId v : dropped) {
    MemoryPlan more = plan;
    more.actions[at(v)] = Keep{};
    more = predicted(graph, std::move(more));
    if (more.predicted_peak <= budget && more.predicted_seconds <= plan.predicted_seconds) plan = std::move(more);
  }
  return plan;
}

}  // namespace

MemoryPlan plan_floor(const StepGraph& graph) {
  auto plans = candidates(graph);
  return *std::ranges::min_element(plans, {}, &MemoryPlan::predicted_peak);
}

MemoryPlan plan_greedy(const StepGraph& graph, Budget budget) {
  const auto plans = candidates(graph);
  const auto fits =
      std::ranges::find_if(plans, [&](const MemoryPlan& p) { return p.predicted_peak <= budget.for_blocks(); });
  if (fits == plans.end()) {
    const MemoryPlan& least = *std::ranges::min_element(plans, {}, &MemoryPlan::predicted_peak);
    const Simulation run = simulate(graph, least);
    throw DoesNotFit({budget.device, budget.floor_for(least.predicted_peak), graph.static_by_tag,
                      least.predicted_peak - graph.static_bytes,
                      run.peak_op == kNoOp ? std::string() : graph.ops[at(run.peak_op)].name, "greedy"});
  }
  MemoryPlan plan = keep_what_fits(graph, *fits, budget.for_blocks());
  plan.strategy = "greedy";
  plan.budget = budget.device;
  return plan;
}

}  // namespace snug::plan
