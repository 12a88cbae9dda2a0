#include "snug/plan/search/descent.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/search/change.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/plan/step/pieces.h"

namespace snug::plan {
namespace {

constexpr std::size_t kLongestInPieces = 6;
// Plans start with segments of so many pieces, or with none.
constexpr std::array<std::size_t, 4> kPiecesAtOnce = {0, 1, 2, 3};
// Looks at a value before it is dropped: its figures change with every other that goes.
constexpr std::size_t kLooksPerValue = 4;

struct Figures {
  double excess = 0;  // bytes above the level, summed over the events
  double seconds = 0;
  Bytes peak = 0;
};

class Descent {
 public:
  /// `segments`: to be added where dropping values is not enough.
  Descent(const StepGraph& graph, const std::vector<SegmentRange>& segments, MemoryPlan start, Effort effort)
      : graph_(graph), plan_(std::move(start)), effort_(effort) {
    std::size_t values = 0;
    for (ValueId v = 0; v < graph.flow.values(); ++v) {
      if (!has_choice(graph, v) || graph.step_bytes(v) <= 0) continue;
      ++values;
      for (const Action& action : legal_actions(graph, v)) changes_.emplace_back(SetAction{v, action});
    }
    actions_ = changes_.size();
    for (const SegmentRange& range : segments) changes_.emplace_back(ToggleSegment{range});
    const std::size_t looks = static_cast<std::size_t>(effort.left) / std::max<std::size_t>(graph.ops.size(), 1);
    at_once_ = 1 + values * kLooksPerValue / std::max<std::size_t>(looks, 1);
  }

  /// False when nothing takes anything off any more, or the effort is spent.
  bool to(Bytes level) {
    level_ = level;
    now_ = figures(plan_);
    while (now_ && now_->peak > level && effort_.left > 0) {
      drop_values();
      if (!now_ || now_->peak <= level) break;
      if (!take_any_change()) return false;
    }
    if (!now_ || now_->peak > level) return false;
    plan_.predicted_peak = now_->peak;
    plan_.predicted_seconds = now_->seconds;
    return true;
  }

  [[nodiscard]] const MemoryPlan& plan() const noexcept { return plan_; }

 private:
  static constexpr double kUnknown = -std::numeric_limits<double>::max();  // comes first
  struct Candidate {
    double price = 0;  // seconds per byte
    std::size_t change = 0;
    int round = -1;                                 // in which it was looked at
    bool operator<(const Candidate& other) const {  // the cheapest first
      return price != other.price ? price > other.price : change > other.change;
    }
  };
  using Queue = std::priority_queue<Candidate>;

  std::optional<Figures> figures(const MemoryPlan& plan) {
    const auto run = simulate_within(graph_, plan, most_replays(graph_), Detail::Timeline);
    effort_.left -= static_cast<std::int64_t>(graph_.ops.size()) + (run ? run->replayed_ops : most_replays(graph_));
    if (!run) return std::nullopt;
    Figures result{0, run->seconds, run->peak};
    for (const Bytes peak : run->peaks) result.excess += static_cast<double>(std::max<Bytes>(peak - level_, 0));
    return result;
  }

  /// What a change costs for each byte that it takes off. Nothing when it takes none off.
  std::optional<double> price(std::size_t change) {
    const auto next = changed(plan_, changes_[change]);
    const auto then = next ? figures(*next) : std::nullopt;
    if (!then || then->excess >= now_->excess) return std::nullopt;
    const double seconds = then->seconds - now_->seconds, bytes = now_->excess - then->excess;
    return seconds > 0 ? seconds / bytes : -bytes;  // for nothing: as much as possible
  }

  void take(std::size_t change) {
    if (auto next = changed(plan_, changes_[change])) plan_ = std::move(*next);
  }

  /// Drops values until the level is reached, or none that is dropped takes anything off.
  void drop_values() {
    Queue queue;
    for (std::size_t i = 0; i < actions_; ++i) {
      const SetAction& set = std::get<SetAction>(changes_[i]);
      if (plan_.keeps(set.value) && set.action != kKeep) queue.push({kUnknown, i});
    }
    std::vector<std::size_t> useless;
    bool dropped = false;  // since those were found useless
    for (int round = 0; now_ && now_->peak > level_ && effort_.left > 0; ++round) {
      std::vector<std::size_t> going;
      while (going.size() < at_once_ && effort_.left > 0) {
        if (queue.empty()) {
          if (!std::exchange(dropped, false)) break;
          for (const std::size_t change : useless) queue.push({kUnknown, change});
          useless.clear();
          continue;
        }
        const Candidate first = queue.top();
        queue.pop();
        // Lazily: a price stands until it comes first.
        if (first.round == round) {
          going.push_back(first.change);
        } else if (const auto asked = price(first.change)) {
          queue.push({*asked, first.change, round});
        } else {
          useless.push_back(first.change);
        }
      }
      if (going.empty()) return;
      for (const std::size_t change : going) take(change);
      now_ = figures(plan_);
      dropped = true;
    }
  }

  /// The best of all changes: keeping a value, or another segment, can shorten replays that are in the way.
  bool take_any_change() {
    std::optional<Candidate> best;
    for (std::size_t i = 0; i < changes_.size() && effort_.left > 0; ++i) {
      if (const auto asked = price(i); asked && (!best || *asked < best->price)) best = {*asked, i};
    }
    if (!best) return false;
    take(best->change);
    now_ = figures(plan_);
    return true;
  }

  const StepGraph& graph_;
  MemoryPlan plan_;
  Effort effort_;
  std::vector<Change> changes_;
  std::size_t actions_ = 0;  // of the changes, first
  std::size_t at_once_ = 1;
  Bytes level_ = 0;
  std::optional<Figures> now_;
};

}  // namespace

std::vector<MemoryPlan> descending_plans(const StepGraph& graph, const std::vector<MemoryPlan>& front,
                                         std::size_t pieces, Effort effort) {
  const Bytes highest = front.front().predicted_peak, lowest = front.back().predicted_peak;
  std::vector<Bytes> levels;
  for (int i = kLevels - 1; i >= 0; --i) {
    const Bytes level = lowest + (highest - lowest) * i / kLevels;
    // Above the first that can be much better there is nothing to do.
    if (!levels.empty() || gap_at(graph, front, level) > kGapWorthIt) levels.push_back(level);
  }
  if (levels.empty()) return {};
  const std::vector<OpId> cuts = chain_cuts(graph, pieces);
  std::vector<MemoryPlan> starts{fastest_within(front, levels.front() + (highest - lowest) / kLevels)};
  for (const std::size_t many : kPiecesAtOnce) {
    MemoryPlan& start = starts.emplace_back(plan_none(graph));
    for (std::size_t i = 0; many > 0 && i + 1 < cuts.size(); i += many)
      start.segments.push_back({cuts[i], cuts[std::min(i + many, cuts.size() - 1)]});
  }
  const std::vector<SegmentRange> segments = likely_segments(graph, pieces, kLongestInPieces);
  std::vector<MemoryPlan> plans;
  for (MemoryPlan& start : starts) {
    Descent descent(graph, segments, std::move(start), {effort.left / static_cast<std::int64_t>(starts.size())});
    for (const Bytes level : levels) {
      if (!descent.to(level)) break;
      plans.push_back(descent.plan());
    }
  }
  return plans;
}

}  // namespace snug::plan
