#include "snug/plan/search/front.h"

#include <algorithm>
#include <iterator>
#include <queue>
#include <utility>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/run/homes.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

/// `slower` with about half of the bytes that only `faster` keeps. The same as `slower` when there is nothing between.
MemoryPlan between(const StepGraph& graph, const MemoryPlan& slower, const MemoryPlan& faster) {
  struct Candidate {
    ValueId value;
    double seconds_per_byte;
  };
  std::vector<Candidate> candidates;
  Bytes all = 0;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    const Bytes bytes = graph.step_bytes(v);
    if (!has_choice(graph, v) || slower.keeps(v) || !faster.keeps(v) || bytes <= 0) continue;
    candidates.push_back({v, graph.ops[at(graph.flow.producer(v))].seconds / static_cast<double>(bytes)});
    all += bytes;
  }
  std::ranges::stable_sort(candidates, std::ranges::greater(), &Candidate::seconds_per_byte);
  MemoryPlan plan = slower;
  Bytes kept = 0;
  for (const Candidate& c : candidates) {
    const Bytes bytes = graph.step_bytes(c.value);
    if (kept > 0 && kept + bytes > all / 2) continue;
    kept += bytes;
    if (kept == all) break;
    plan.actions[at(c.value)] = kKeep;
  }
  return plan;
}

/// Whether a plan with these figures is worth having in the front.
bool worth_having(const std::vector<MemoryPlan>& front, Bytes peak, double seconds) {
  const auto next = std::ranges::lower_bound(front, peak, std::ranges::greater(), &MemoryPlan::predicted_peak);
  return next == front.end() || next->predicted_seconds > seconds;
}

}  // namespace

std::int64_t most_replays(const StepGraph& graph) { return 12 * static_cast<std::int64_t>(graph.ops.size()) + 20'000; }

std::size_t plans_per_stage(const StepGraph& graph) {
  constexpr std::size_t kOps = 8'000'000, kFewest = 64, kMost = 2048;
  return std::clamp(kOps / std::max<std::size_t>(graph.ops.size(), 1), kFewest, kMost);
}

std::optional<MemoryPlan> predicted_if_useful(const StepGraph& graph, MemoryPlan plan, Effort* effort) {
  plan = within_host(graph, std::move(plan));
  const auto run = simulate_within(graph, plan, most_replays(graph));
  if (effort != nullptr) {
    effort->left -= static_cast<std::int64_t>(graph.ops.size()) + (run ? run->replayed_ops : most_replays(graph));
  }
  if (!run) return std::nullopt;
  plan.predicted_peak = run->peak;
  plan.predicted_seconds = run->seconds;
  return plan;
}

std::vector<MemoryPlan> front_of(std::vector<MemoryPlan> plans) {
  std::ranges::stable_sort(plans, [](const MemoryPlan& a, const MemoryPlan& b) {
    return a.predicted_peak != b.predicted_peak ? a.predicted_peak < b.predicted_peak
                                                : a.predicted_seconds < b.predicted_seconds;
  });
  std::vector<MemoryPlan> front;
  for (MemoryPlan& plan : plans) {
    if (front.empty() || plan.predicted_seconds < front.back().predicted_seconds) front.push_back(std::move(plan));
  }
  std::ranges::reverse(front);
  return front;
}

bool join(std::vector<MemoryPlan>& front, const MemoryPlan& plan) {
  if (!worth_having(front, plan.predicted_peak, plan.predicted_seconds)) return false;
  auto end = std::ranges::lower_bound(front, plan.predicted_peak, std::ranges::greater(), &MemoryPlan::predicted_peak);
  if (end != front.end() && end->predicted_peak == plan.predicted_peak) ++end;
  auto begin = end;
  while (begin != front.begin() && std::prev(begin)->predicted_seconds >= plan.predicted_seconds) --begin;
  front.insert(front.erase(begin, end), plan);
  return true;
}

const MemoryPlan& fastest_within(const std::vector<MemoryPlan>& front, Bytes peak) {
  return *std::ranges::find_if(front, [&](const MemoryPlan& plan) { return plan.predicted_peak <= peak; });
}

double gap_at(const StepGraph& graph, const std::vector<MemoryPlan>& front, Bytes peak) {
  const double bound = lower_bound(graph, peak).step_seconds;
  return (fastest_within(front, peak).predicted_seconds - bound) / graph.step_seconds;
}

std::vector<MemoryPlan> with_gaps_filled(const StepGraph& graph, std::vector<MemoryPlan> front, Effort effort) {
  // By what the plans are, not where: the vector grows.
  struct Gap {
    Bytes width;
    std::size_t faster, slower;
    bool operator<(const Gap& other) const { return width < other.width; }
  };
  std::priority_queue<Gap> gaps;
  const auto add = [&](std::size_t faster, std::size_t slower) {
    gaps.push({front[faster].predicted_peak - front[slower].predicted_peak, faster, slower});
  };
  for (std::size_t i = 0; i + 1 < front.size(); ++i) add(i, i + 1);
  while (effort.left > 0 && !gaps.empty()) {
    const Gap gap = gaps.top();
    gaps.pop();
    if (gap.width <= 1) break;
    const MemoryPlan halfway = between(graph, front[gap.slower], front[gap.faster]);
    if (halfway.actions == front[gap.slower].actions) continue;
    auto useful = predicted_if_useful(graph, halfway, &effort);
    if (!useful) continue;
    MemoryPlan& plan = *useful;
    const bool inside = plan.predicted_peak < front[gap.faster].predicted_peak &&
                        plan.predicted_peak > front[gap.slower].predicted_peak &&
                        plan.predicted_seconds < front[gap.slower].predicted_seconds;
    const bool better = plan.predicted_seconds <= front[gap.faster].predicted_seconds ||
                        plan.predicted_peak <= front[gap.slower].predicted_peak;
    if (!inside && !better) continue;
    front.push_back(std::move(plan));
    add(gap.faster, front.size() - 1);
    add(front.size() - 1, gap.slower);
  }
  return front_of(std::move(front));
}

std::vector<MemoryPlan> with_actions_changed(const StepGraph& graph, std::vector<MemoryPlan> front, Effort effort) {
  std::vector<ValueId> values;  // worth another action: saved, the largest first
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (graph.values[at(v)].saved && has_choice(graph, v) && graph.step_bytes(v) > 0) values.push_back(v);
  }
  std::ranges::stable_sort(values, std::ranges::greater(), [&](ValueId v) { return graph.step_bytes(v); });
  std::vector<MemoryPlan> fresh = front;  // whose neighbours have not been looked at
  while (effort.left > 0 && !fresh.empty()) {
    std::vector<MemoryPlan> found;
    // A share of the tries for each, so that no stretch of the front is left out.
    const auto tries = static_cast<std::size_t>(effort.left) / std::max<std::size_t>(graph.ops.size(), 1);
    const std::size_t share = std::max<std::size_t>(1, tries / fresh.size());
    const std::size_t stride = std::max<std::size_t>(1, values.size() / share);
    for (std::size_t i = 0; i < fresh.size() && effort.left > 0; ++i) {
      for (std::size_t k = i % stride; k < values.size() && effort.left > 0; k += stride) {
        for (const Action& action : other_actions(graph, fresh[i], values[k])) {
          auto useful = predicted_if_useful(graph, with_action(fresh[i], values[k], action), &effort);
          if (useful && worth_having(front, useful->predicted_peak, useful->predicted_seconds))
            found.push_back(std::move(*useful));
        }
      }
    }
    fresh = front_of(std::move(found));
    front.insert(front.end(), fresh.begin(), fresh.end());
    front = front_of(std::move(front));
    // Only those that made it.
    std::erase_if(fresh, [&](const MemoryPlan& plan) {
      const auto same =
          std::ranges::lower_bound(front, plan.predicted_peak, std::ranges::greater(), &MemoryPlan::predicted_peak);
      return same == front.end() || same->actions != plan.actions || same->segments != plan.segments;
    });
  }
  return front;
}

}  // namespace snug::plan
