#include "snug/plan/search/price_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/bound/relaxation.h"
#include "snug/plan/run/homes.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/search/front.h"
#include "snug/plan/step/segments.h"
#include "snug/plan/step/step_walk.h"

namespace snug::plan {
namespace {

constexpr std::size_t kMixed = 3;  // moments that are looked at in pairs
constexpr int kSharesOfAMix = 4;
constexpr int kStepsPerBudget = 10;

/// How much is tried. Each vertex, and each step for a budget, are two plans to simulate.
struct Extent {
  std::size_t hull = 64;  ///< vertices that the search starts from
  std::size_t mixed_hull = 16;
  std::size_t budgets = 24;
};

/// All of it for steps of up to 5,000 operators: together some 1,500 plans.
Extent extent_for(const StepGraph& graph) {
  const Extent all;
  const auto share = [plans = std::min<std::size_t>(plans_per_stage(graph), 1600)](std::size_t of, std::size_t least) {
    return std::max(of * plans / 1600, least);
  };
  return {share(all.hull, 8), share(all.mixed_hull, 2), share(all.budgets, 3)};
}
constexpr std::size_t kMostPrices = 24;

/// Events between which a value that is kept takes memory only because it is kept: the program has let go of it, and
/// somebody needs it later.
struct Stay {
  std::size_t begin = 0, end = 0;
};

std::vector<Stay> stays_of(const StepGraph& graph, std::size_t settle) {
  std::vector<Stay> stays(graph.values.size());
  const std::vector<Lifetime> lives = lifetimes(graph);
  for (std::size_t v = 0; v < stays.size(); ++v) {
    if (lives[v].dies != Lifetime::kNever) stays[v].begin = lives[v].dies;
    if (lives[v].last_unpack != Lifetime::kNever) stays[v].end = lives[v].last_unpack;
  }
  // What only replays read is needed as long as what they make.
  const Dataflow& flow = graph.flow;
  for (OpId op = flow.ops() - 1; op >= 0; --op) {
    std::size_t end = settle;
    for (const Output& out : flow.outputs(op)) end = std::max(end, stays[at(out.value)].end);
    for (ValueId v : flow.inputs(op)) {
      if (!graph.values[at(v)].saved && !flow.is_leaf(v)) stays[at(v)].end = std::max(stays[at(v)].end, end);
    }
  }
  return stays;
}

class Search {
 public:
  Search(const StepGraph& graph, std::size_t settle)
      : graph_(graph),
        bare_(bare_plan(graph)),
        extent_(extent_for(graph)),
        stays_(stays_of(graph, settle)),
        relaxation_(graph, Moment(graph, settle)) {}

  std::vector<MemoryPlan> run() {
    add(plan_none(graph_));
    // At one price for all moments first.
    for (const RelaxedChoice& choice : relaxation_.hull(extent_.hull)) try_choice(choice);
    // Then at two moments at a time, of those where plans have their peaks.
    for (int round = 0; round < 2; ++round) {
      const std::vector<std::size_t> events = frequent_peaks();
      for (std::size_t i = 0; i < events.size(); ++i) {
        for (std::size_t k = i + 1; k < events.size(); ++k) mix(events[i], events[k]);
      }
    }
    const Bytes most = plans_.front().predicted_peak;
    const Bytes least = lower_bound_of_peak(graph_);
    for (std::size_t i = 1; i < extent_.budgets && most > least; ++i) {
      search(least + (most - least) * static_cast<Bytes>(extent_.budgets - i) / static_cast<Bytes>(extent_.budgets));
    }
    return std::move(plans_);
  }

 private:
  struct Price {
    std::size_t event;
    double seconds_per_byte;
  };

  [[nodiscard]] std::vector<std::size_t> frequent_peaks() const {
    std::map<std::size_t, int> count;
    for (const std::size_t event : peak_events_) ++count[event];
    std::vector<std::size_t> events;
    for (const auto& [event, times] : count) events.push_back(event);
    std::ranges::stable_sort(events, std::ranges::greater(), [&](std::size_t event) { return count.at(event); });
    if (events.size() > kMixed) events.resize(kMixed);
    return events;
  }

  void mix(std::size_t a, std::size_t b) {
    if (!mixed_.emplace(std::min(a, b), std::max(a, b)).second) return;
    for (int share = 0; share <= kSharesOfAMix; ++share) {
      prices_ = {{a, static_cast<double>(share) / kSharesOfAMix}, {b, 1 - static_cast<double>(share) / kSharesOfAMix}};
      relaxation_.set_weights(weights());
      for (const RelaxedChoice& choice : relaxation_.hull(extent_.mixed_hull)) try_choice(choice);
    }
    prices_.clear();
  }

  /// Tries the plan of a choice, replayed together with whatever reads it and stretch by stretch. Returns the highest
  /// memory at each event for the better one.
  std::vector<Bytes> try_choice(const RelaxedChoice& choice) {
    MemoryPlan plan = bare_;
    plan.actions = relaxation_.actions(choice);
    std::vector<Bytes> peaks = add(plan);
    plan.segments = runs_with_readers(graph_.flow, choice.replayed);
    std::vector<Bytes> apart = add(std::move(plan));
    if (peaks.empty() || apart.empty()) return peaks.empty() ? apart : peaks;
    return std::ranges::max(apart) < std::ranges::max(peaks) ? apart : peaks;
  }

  std::vector<Bytes> add(MemoryPlan plan) {
    plan = within_host(graph_, std::move(plan));
    auto run = simulate_within(graph_, plan, most_replays(graph_), Detail::Timeline);
    if (!run) return {};
    plan.predicted_peak = run->peak;
    plan.predicted_seconds = run->seconds;
    plans_.push_back(std::move(plan));
    peak_events_.push_back(run->peak_event);
    return std::move(run->peaks);
  }

  [[nodiscard]] double fastest_within(Bytes budget) const {
    double seconds = std::numeric_limits<double>::infinity();
    for (const MemoryPlan& plan : plans_) {
      if (plan.predicted_peak <= budget) seconds = std::min(seconds, plan.predicted_seconds);
    }
    return seconds - graph_.step_seconds;
  }

  [[nodiscard]] std::vector<double> weights() const {
    // Sum of the prices at moments inside of a stay.
    std::vector<Price> sorted = prices_;
    std::ranges::sort(sorted, {}, &Price::event);
    std::vector<double> before{0};
    for (const Price& p : sorted) before.push_back(before.back() + p.seconds_per_byte);
    const auto until = [&](std::size_t event) {
      const auto next = std::ranges::lower_bound(sorted, event, {}, &Price::event);
      return before[static_cast<std::size_t>(next - sorted.begin())];
    };
    // What is there between forward and backward, other micro-batches in flight hold too, at each of the moments.
    const std::size_t turn = graph_.turn_event();
    const double of_others = (graph_.in_flight - 1) * before.back();
    std::vector<double> weights(graph_.values.size(), 0);
    for (std::size_t v = 0; v < weights.size(); ++v) {
      const Stay& stay = stays_[v];
      if (stay.end <= stay.begin + 1) continue;
      const bool in_between = stay.begin < turn && turn <= stay.end;
      const double price = until(stay.end) - until(stay.begin + 1) + (in_between ? of_others : 0.0);
      weights[v] = price * static_cast<double>(graph_.step_bytes(static_cast<ValueId>(v)));
    }
    return weights;
  }

  void search(Bytes budget) {
    for (int i = 0; i < kStepsPerBudget; ++i) {
      relaxation_.set_weights(weights());
      const RelaxedChoice choice = relaxation_.best(1);
      const std::vector<Bytes> peaks = try_choice(choice);
      if (peaks.empty()) return;
      const auto highest = std::ranges::max_element(peaks);
      const auto event = static_cast<std::size_t>(highest - peaks.begin());
      if (*highest > budget && prices_.size() < kMostPrices &&
          std::ranges::find(prices_, event, &Price::event) == prices_.end()) {
        prices_.push_back({event, 0});
      }
      double value = choice.seconds, length = 0;
      for (const Price& p : prices_) {
        const auto over = static_cast<double>(peaks[p.event] - budget);
        value += p.seconds_per_byte * over;
        if (over > 0 || p.seconds_per_byte > 0) length += over * over;
      }
      const double best = fastest_within(budget);
      if (length <= 0) return;
      // Nothing fits yet: as if everything had to run again.
      const double target = std::isfinite(best) ? best : graph_.step_seconds;
      const double step = std::max(target - value, kLeastStep * std::max(target, choice.seconds)) / length;
      for (Price& p : prices_) {
        p.seconds_per_byte = std::max(0.0, p.seconds_per_byte + step * static_cast<double>(peaks[p.event] - budget));
      }
    }
  }

  static constexpr double kLeastStep = 0.02;

  const StepGraph& graph_;
  MemoryPlan bare_;
  Extent extent_;
  std::vector<Stay> stays_;
  Relaxation relaxation_;
  std::vector<Price> prices_;
  std::vector<MemoryPlan> plans_;
  std::vector<std::size_t> peak_events_;  // of those plans
  std::set<std::pair<std::size_t, std::size_t>> mixed_;
};

}  // namespace

std::vector<MemoryPlan> priced_plans(const StepGraph& graph) {
  const std::size_t settle = graph.settle_event();
  if (settle == graph.events.size()) return {};
  return Search(graph, settle).run();
}

}  // namespace snug::plan
