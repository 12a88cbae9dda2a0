#include "snug/plan/search/annealing.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "snug/plan/search/chance.h"
#include "snug/plan/search/neighbourhood.h"

namespace snug::plan {
namespace {

// Temperatures, in shares of the unplanned step's seconds. What one value costs is a few thousandths of them; at a
// tenth of that a plan is left for a slower one often enough to go on, and not for any.
constexpr double kHottest = 5e-4, kColdest = 1e-5;
// What a plan costs, in the same shares, for a peak that is over the cap by the whole span between the unplanned peak
// and the floor.
constexpr double kOverPenalty = 4;
// Values of which more would fit into that span are too small to try.
constexpr Bytes kValuesInSpan = 500;
constexpr std::uint32_t kSeed = 20'06;

class Annealing {
 public:
  /// `front`: is better with whatever it comes by.
  Annealing(const StepGraph& graph, Bytes span, std::vector<MemoryPlan>& front)
      : graph_(graph), span_(span), near_(graph, span / kValuesInSpan), front_(front) {}

  /// Looks for plans with a peak within `cap` from `start`, whose peak may be larger.
  void run(const MemoryPlan& start, Bytes cap, Effort effort) {
    if (near_.empty()) return;
    const auto cost = [&](const MemoryPlan& plan) {
      const auto over = static_cast<double>(std::max<Bytes>(plan.predicted_peak - cap, 0));
      return plan.predicted_seconds / graph_.step_seconds + kOverPenalty * over / static_cast<double>(span_);
    };
    MemoryPlan current = start;
    double current_cost = cost(current);
    const auto all = static_cast<double>(effort.left);
    while (effort.left > 0) {
      const double heat = kHottest * static_cast<double>(effort.left) / all + kColdest;
      std::optional<MemoryPlan> next = near_.near(current, chance_);
      if (!next) {
        --effort.left;
        continue;
      }
      next = predicted_if_useful(graph_, std::move(*next), &effort);
      if (!next) continue;
      join(front_, *next);
      const double next_cost = cost(*next);
      if (next_cost < current_cost || std::exp((current_cost - next_cost) / heat) > chance_.fraction()) {
        current = std::move(*next);
        current_cost = next_cost;
      }
    }
  }

 private:
  const StepGraph& graph_;
  Bytes span_;
  Neighbourhood near_;
  std::vector<MemoryPlan>& front_;
  Chance chance_{kSeed};
};

// Shares of the step's seconds and of the span, of which less is a trifle.
constexpr double kTriflingSeconds = 1e-4;
constexpr Bytes kTriflesInSpan = 500;

/// Without plans that save both less time than a trifle over the next slower one that stays, and less memory over the
/// next larger; but for those of before.
std::vector<MemoryPlan> thinned(const StepGraph& graph, std::vector<MemoryPlan> front,
                                const std::vector<MemoryPlan>& before, Bytes span) {
  const double seconds = kTriflingSeconds * graph.step_seconds;
  const Bytes bytes = span / kTriflesInSpan;
  const auto was_there = [&](const MemoryPlan& plan) {
    const auto found =
        std::ranges::lower_bound(before, plan.predicted_peak, std::ranges::greater(), &MemoryPlan::predicted_peak);
    return found != before.end() && found->predicted_peak == plan.predicted_peak &&
           found->predicted_seconds == plan.predicted_seconds;
  };
  std::vector<MemoryPlan> kept;  // by falling peak
  for (std::size_t i = 0; i < front.size(); ++i) {
    const bool is_end = i == 0 || i + 1 == front.size();
    const bool differs = !is_end && (kept.back().predicted_peak - front[i].predicted_peak >= bytes ||
                                     front[i + 1].predicted_seconds - front[i].predicted_seconds >= seconds);
    if (is_end || differs || was_there(front[i])) kept.push_back(std::move(front[i]));
  }
  return kept;
}

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
  const std::vector<MemoryPlan> before = front;
  Annealing annealing(graph, highest - lowest, front);
  Bytes above = highest;
  for (const Level& level : levels) {
    const auto share = static_cast<std::int64_t>(static_cast<double>(effort.left) * level.gap / all_gaps);
    // From the plan for more memory, whose ways lead on downwards, with and without its segments, and from the one that
    // is to be improved.
    MemoryPlan loose = fastest_within(front, above);
    loose.segments.clear();
    std::vector<MemoryPlan> starts{fastest_within(front, above), fastest_within(front, level.cap)};
    if (auto useful = predicted_if_useful(graph, std::move(loose))) starts.push_back(std::move(*useful));
    for (const MemoryPlan& start : starts) annealing.run(start, level.cap, {share / 3});
    above = level.cap;
  }
  return thinned(graph, std::move(front), before, highest - lowest);
}

}  // namespace snug::plan
