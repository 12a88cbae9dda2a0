#include "snug/plan/bound/lower_bound.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "snug/plan/bound/relaxation.h"
#include "snug/plan/bound/unavoidable.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"

namespace snug::plan {
namespace {

constexpr std::size_t kStretches = 12;
constexpr int kShareRounds = 6;

/// The tightest moment of each of a few stretches of the step.
std::vector<std::size_t> tight_moments(const std::vector<Bytes>& levels) {
  std::vector<std::size_t> moments;
  const std::size_t stretch = std::max<std::size_t>(1, (levels.size() + kStretches - 1) / kStretches);
  for (std::size_t begin = 0; begin < levels.size(); begin += stretch) {
    const auto first = levels.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = levels.begin() + static_cast<std::ptrdiff_t>(std::min(begin + stretch, levels.size()));
    moments.push_back(static_cast<std::size_t>(std::max_element(first, last) - levels.begin()));
  }
  return moments;
}

Bytes highest(const StepGraph& graph, const std::vector<Bytes>& unavoidable) {
  return unavoidable.empty() ? graph.static_bytes : *std::ranges::max_element(unavoidable);
}

/// A moment and what a plan must fit there.
struct TightMoment {
  std::size_t event = 0;
  Moment moment;
  double room = 0;
  std::vector<double> weights;  // of values that take room there, unless an operator runs again after it
};

TightMoment tight_moment(const StepGraph& graph, std::size_t event, Bytes room) {
  TightMoment tight{event, Moment(graph, event), static_cast<double>(room), {}};
  // What one holds there all in flight do.
  if (graph.in_flight > 1 && event + 1 == graph.turn_event()) tight.room /= graph.in_flight;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    const bool made = !graph.flow.is_leaf(v) && graph.flow.producer(v) < tight.moment.ops;
    tight.weights.push_back(made && !tight.moment.free[at(v)] ? static_cast<double>(graph.step_bytes(v)) : 0);
  }
  return tight;
}

/// Where copies go on beside what the step computes they hide, but not all of them: before a moment there are no fewer
/// seconds than the copies last that are over by then, and after it none than those of what is fetched later, whatever
/// else the step does. So are there of any mixture of both, and of what it computes; each mixture gives a bound.
class WithHiddenCopies {
 public:
  WithHiddenCopies(const StepGraph& graph, const TightMoment& tight) : graph_(graph), tight_(tight) {
    for (std::size_t i = 0; i <= tight.event; ++i) {
      before_ = after_;
      after_ += graph.events[i].seconds;
    }
  }

  /// More than the step's own seconds; `out` and `in`: shares of what is computed before and after that give way to
  /// copies.
  [[nodiscard]] double bound(double out, double in) const {
    const Relaxation relaxation(graph_, tight_.moment,
                                {.replay = 1 - in, .out = out, .in = in, .encode = 1 - out, .decode = 1 - in});
    const auto given_up = [&](double moment) { return out * moment + in * (graph_.step_seconds - moment); };
    return relaxation.least_seconds(tight_.room).seconds - std::max(given_up(before_), given_up(after_));
  }
  /// Of a few mixtures, to see whether the moment matters.
  [[nodiscard]] double guess() const { return std::max(bound(0.1, 0), bound(0.3, 0)); }
  /// The highest of all mixtures, about: along the one share and the other in turns.
  [[nodiscard]] double best() const {
    double out = 0, in = 0, most = 0;
    for (int i = 0; i < kTurns; ++i) {
      std::tie(out, most) = highest([&](double share) { return bound(share, in); }, out);
      std::tie(in, most) = highest([&](double share) { return bound(out, share); }, in);
    }
    return most;
  }

 private:
  static constexpr int kRounds = 6, kTurns = 2;
  /// Where a concave function of a share is highest, about, and no lower than at `start`.
  template <class Function>
  static std::pair<double, double> highest(const Function& function, double start) {
    double low = 0, high = 1;
    std::pair<double, double> best{start, function(start)};
    for (int i = 0; i < kRounds; ++i) {
      const double left = low + (high - low) / 3, right = high - (high - low) / 3;
      const double at_left = function(left), at_right = function(right);
      for (const auto& [share, value] : {std::pair(left, at_left), std::pair(right, at_right)}) {
        if (value > best.second) best = {share, value};
      }
      (at_left < at_right ? low : high) = at_left < at_right ? left : right;
    }
    return best;
  }

  const StepGraph& graph_;
  const TightMoment& tight_;
  double before_ = 0, after_ = 0;  // seconds of the step when the moment's event begins, and is over
};

double with_hidden_copies(const StepGraph& graph, const std::vector<TightMoment>& moments) {
  constexpr std::size_t kLookedAtClosely = 2;
  std::vector<std::pair<double, const TightMoment*>> by_guess;
  for (const TightMoment& tight : moments) by_guess.emplace_back(WithHiddenCopies(graph, tight).guess(), &tight);
  std::ranges::stable_sort(by_guess, std::ranges::greater(), &std::pair<double, const TightMoment*>::first);
  double most = 0;
  for (std::size_t i = 0; i < std::min(kLookedAtClosely, by_guess.size()); ++i)
    most = std::max(most, WithHiddenCopies(graph, *by_guess[i].second).best());
  return most;
}

/// The bound from two moments together: a mixture of both constraints holds too, so each mixture gives a bound.
double with_second_moment(const StepGraph& graph, const std::vector<TightMoment>& moments, std::size_t best,
                          const RelaxedChoice& choice) {
  // The other moment that the choice for the best one violates most.
  const TightMoment* other = nullptr;
  double worst = 0;
  for (const TightMoment& tight : moments) {
    double weight = 0;
    for (ValueId v = 0; v < graph.flow.values(); ++v) {
      const OpId op = graph.flow.producer(v);
      if (op != kNoOp && tight.moment.saved[at(v)] && !choice.replayed[at(op)]) weight += tight.weights[at(v)];
    }
    if (&tight == &moments[best] || weight - tight.room <= worst) continue;
    worst = weight - tight.room;
    other = &tight;
  }
  if (other == nullptr) return 0;
  // What runs again after the later moment runs again after the earlier one. The other way round only saved values are
  // sure to be asked for at both.
  const TightMoment& best_moment = moments[best];
  const bool earlier = &best_moment < other;  // they are in the order of the step
  const TightMoment& early = earlier ? best_moment : *other;
  const TightMoment& late = earlier ? *other : best_moment;
  Moment both = late.moment;
  both.lost = early.moment.lost;
  both.several = true;
  for (std::size_t v = 0; v < both.saved.size(); ++v) {
    both.saved[v] = both.saved[v] || early.moment.saved[v];
    both.free[v] = early.moment.free[v] && late.moment.free[v];
  }
  Relaxation relaxation(graph, both);
  const auto bound_at = [&](double share) {
    std::vector<double> weights(graph.values.size(), 0);
    for (std::size_t v = 0; v < weights.size(); ++v) {
      if (early.moment.saved[v] || !late.moment.saved[v]) weights[v] += share * early.weights[v];
      if (late.moment.saved[v]) weights[v] += (1 - share) * late.weights[v];
    }
    relaxation.set_weights(std::move(weights));
    return relaxation.least_seconds(share * early.room + (1 - share) * late.room).seconds;
  };
  // The bound is quasi-concave in the share.
  double low = 0, high = 1, most = 0;
  for (int i = 0; i < kShareRounds; ++i) {
    const double left = low + (high - low) / 3, right = high - (high - low) / 3;
    const double at_left = bound_at(left), at_right = bound_at(right);
    most = std::max({most, at_left, at_right});
    (at_left < at_right ? low : high) = at_left < at_right ? left : right;
  }
  return most;
}

}  // namespace

Bytes lower_bound_of_peak(const StepGraph& graph) { return highest(graph, unavoidable_bytes(graph)); }

LowerBound lower_bound(const StepGraph& graph, Bytes peak) {
  if (graph.others_held != graph.others_least) {
    StepGraph with_least = graph;
    with_least.others_held = graph.others_least;
    return lower_bound(with_least, peak);
  }
  const std::vector<Bytes> unavoidable = unavoidable_bytes(graph);
  LowerBound bound;
  bound.peak = highest(graph, unavoidable);
  bound.step_seconds = graph.step_seconds;
  if (bound.peak > peak) {
    bound.step_seconds = std::numeric_limits<double>::infinity();
    return bound;
  }
  // A moment can only ask for replays if keeping everything is too much there.
  const std::vector<Bytes> everything = simulate(graph, plan_none(graph), Detail::Timeline).peaks;
  std::vector<TightMoment> moments;
  std::vector<std::size_t> events = tight_moments(everything);
  if (const std::size_t turn = graph.turn_event(); graph.in_flight > 1 && turn > 0 && turn <= everything.size()) {
    std::erase(events, turn - 1);
    events.insert(std::ranges::lower_bound(events, turn - 1), turn - 1);
  }
  for (const std::size_t event : events) {
    if (everything[event] > peak) moments.push_back(tight_moment(graph, event, peak - unavoidable[event]));
  }
  double most = 0;
  if (graph.moves.overlapping() != Home::Device) {
    bound.step_seconds += with_hidden_copies(graph, moments);
    return bound;
  }
  std::size_t first = 0;
  Relaxation::Bound alone;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    Relaxation::Bound found = Relaxation(graph, moments[i].moment).least_seconds(moments[i].room);
    if (found.seconds <= most) continue;
    most = found.seconds;
    alone = std::move(found);
    first = i;
  }
  if (most > 0) most = std::max(most, with_second_moment(graph, moments, first, alone.choice));
  bound.step_seconds += most;
  return bound;
}

double optimality_gap(double plan_seconds, double bound_seconds, double unplanned_seconds) {
  const double plan = plan_seconds - unplanned_seconds;
  const double bound = bound_seconds - unplanned_seconds;
  if (plan <= 0) return 0;
  return bound > 0 && bound_seconds < std::numeric_limits<double>::infinity() ? plan / bound - 1
                                                                              : std::numeric_limits<double>::infinity();
}

}  // namespace snug::plan
