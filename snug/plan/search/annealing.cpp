#include "snug/plan/search/annealing.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <utility>

#include "snug/plan/search/change.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

// Temperatures, in shares of the unplanned step's seconds.
constexpr double kHottest = 0.02, kColdest = 1e-5;
// What a plan costs, in the same shares, for a peak that is over the cap by the whole span between the unplanned peak
// and the floor.
constexpr double kOverPenalty = 4;
// Values of which more would fit into that span are too small to try.
constexpr Bytes kValuesInSpan = 500;
constexpr OpId kLongestNewSegment = 40;

/// Each range once, and none across another.
bool nest_or_are_disjoint(const std::vector<SegmentRange>& ranges) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (ranges[i] == ranges[k] || !nest_or_apart(ranges[i], ranges[k])) return false;
    }
  }
  return true;
}

class Annealing {
 public:
  Annealing(const StepGraph& graph, Bytes highest, Bytes lowest) : graph_(graph), span_(highest - lowest) {
    for (ValueId v = 0; v < graph.flow.values(); ++v) {
      if (has_choice(graph, v) && graph.step_bytes(v) > span_ / kValuesInSpan) values_.push_back(v);
    }
  }

  /// The fastest plan with a peak within `cap` that is found from `start`, whose peak may be larger.
  std::optional<MemoryPlan> run(const MemoryPlan& start, Bytes cap, Effort effort) {
    std::optional<MemoryPlan> best;
    if (values_.empty()) return best;
    const auto cost = [&](const MemoryPlan& plan) {
      const auto over = static_cast<double>(std::max<Bytes>(plan.predicted_peak - cap, 0));
      return plan.predicted_seconds / graph_.step_seconds + kOverPenalty * over / static_cast<double>(span_);
    };
    MemoryPlan current = start;
    double current_cost = cost(current);
    const auto all = static_cast<double>(effort.left);
    while (effort.left > 0) {
      const double heat = kHottest * static_cast<double>(effort.left) / all + kColdest;
      std::optional<MemoryPlan> next = neighbour(current);
      if (!next) {
        --effort.left;
        continue;
      }
      next = predicted_if_useful(graph_, std::move(*next), &effort);
      if (!next) continue;
      if (next->predicted_peak <= cap && (!best || next->predicted_seconds < best->predicted_seconds)) best = next;
      const double next_cost = cost(*next);
      if (next_cost < current_cost || std::exp((current_cost - next_cost) / heat) > chance()) {
        current = std::move(*next);
        current_cost = next_cost;
      }
    }
    return best;
  }

 private:
  // The standard's distributions differ between libraries; plans must not.
  std::uint32_t roll(std::size_t sides) { return static_cast<std::uint32_t>(random_() % sides); }
  double chance() { return static_cast<double>(random_()) / 4294967296.0; }

  void set_any_action(MemoryPlan& plan) {
    const ValueId value = values_[roll(values_.size())];
    const std::vector<Action> others = other_actions(graph_, plan, value);
    plan.actions[at(value)] = others.size() == 1 ? others.front() : others[roll(others.size())];
  }

  std::optional<MemoryPlan> neighbour(const MemoryPlan& plan) {
    const std::uint32_t move = roll(10);
    MemoryPlan next = plan;
    if (move < 7) {
      set_any_action(next);
      if (move >= 5) set_any_action(next);
      return next;
    }
    auto& segments = next.segments;
    const auto ops = graph_.flow.ops();
    if (move == 7) {
      if (segments.empty()) return std::nullopt;
      segments.erase(segments.begin() + roll(segments.size()));
      return next;
    }
    if (move == 8 || segments.empty()) {
      const auto begin = static_cast<OpId>(roll(at(ops)));
      segments.push_back({begin, begin + 1 + static_cast<OpId>(roll(at(kLongestNewSegment)))});
    } else {
      SegmentRange& range = segments[roll(segments.size())];
      (roll(2) == 0 ? range.begin : range.end) += static_cast<OpId>(roll(7)) - 3;
    }
    const auto possible = [&](const SegmentRange& r) { return r.begin >= 0 && r.begin < r.end && r.end <= ops; };
    if (!std::ranges::all_of(segments, possible) || !nest_or_are_disjoint(segments)) return std::nullopt;
    return next;
  }

  const StepGraph& graph_;
  Bytes span_;
  std::vector<ValueId> values_;
  std::mt19937 random_{20'06};  // NOLINT: reproducible on purpose
};

}  // namespace

std::vector<MemoryPlan> with_annealing(const StepGraph& graph, std::vector<MemoryPlan> front, Effort effort) {
  const Bytes highest = front.front().predicted_peak, lowest = front.back().predicted_peak;
  if (highest == lowest || graph.step_seconds <= 0) return front;
  struct Level {
    Bytes cap;
    double gap;
  };
  std::vector<Level> levels;  // by falling cap
  double all_gaps = 0;
  for (int i = kLevels - 1; i >= 0; --i) {
    const Bytes cap = lowest + (highest - lowest) * i / kLevels;
    const double gap = gap_at(graph, front, cap);
    if (!(gap > kGapWorthIt)) continue;
    levels.push_back({cap, gap});
    all_gaps += gap;
  }
  Annealing annealing(graph, highest, lowest);
  Bytes above = highest;
  for (const Level& level : levels) {
    const auto share = static_cast<std::int64_t>(static_cast<double>(effort.left) * level.gap / all_gaps);
    // From the plan for more memory, whose ways lead on downwards, with and without its segments, and from the one that
    // is to be improved.
    MemoryPlan loose = fastest_within(front, above);
    loose.segments.clear();
    std::vector<MemoryPlan> starts{fastest_within(front, above), fastest_within(front, level.cap)};
    if (auto useful = predicted_if_useful(graph, std::move(loose))) starts.push_back(std::move(*useful));
    for (const MemoryPlan& start : starts) {
      if (auto found = annealing.run(start, level.cap, {share / 3})) front.push_back(std::move(*found));
    }
    front = front_of(std::move(front));
    above = level.cap;
  }
  return front;
}

}  // namespace snug::plan
