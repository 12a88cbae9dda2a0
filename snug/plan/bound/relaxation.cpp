#include "snug/plan/bound/relaxation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <utility>

#include "snug/plan/step/legal_actions.h"
#include "snug/plan/step/step_walk.h"

namespace snug::plan {
namespace {

// All seconds of a step in capacity units. Large enough that rounding down does not matter, small enough that sums stay
// far from overflow.
constexpr double kCapacityOfAllSeconds = 1e12;
constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr double kAnyPrice = 1e100;  // seconds for a byte, of which 0 are still free

double seconds_of(const MoveCost& cost, Bytes bytes, const SecondsCount& count) {
  const double own = count.encode * cost.own_out(bytes) + count.decode * cost.own_in(bytes);
  return cost.overlaps ? count.out * cost.out(bytes) + count.in * cost.in(bytes) + own
                       : count.encode * cost.out(bytes) + count.decode * cost.in(bytes);
}

/// Where copies to two homes go on at once, neither hides more than its own; together they take no fewer seconds than a
/// mixture of both, of which this is the share that makes both alike for large contents.
double share_of(const Moves& moves, Home home) {
  if (!moves.host || !moves.disk || !moves.host->overlaps || !moves.disk->overlaps) return 1;
  const auto per_byte = [](const MoveCost& cost) { return cost.out_seconds_per_byte + cost.in_seconds_per_byte; };
  const double host = per_byte(*moves.host), disk = per_byte(*moves.disk);
  if (host + disk <= 0) return 0.5;
  return (home == Home::Host ? disk : host) / (host + disk);
}

}  // namespace

Moment::Moment(const StepGraph& graph, std::size_t event)
    : saved(graph.values.size(), 0), free(graph.values.size(), 0), lost(graph.values.size(), 0) {
  StepWalk walk(graph);
  while (!walk.at_end() && walk.position() < event) walk.step();
  const StepWalk before = walk;
  if (!walk.at_end()) walk.step();
  ops = walk.ops();
  const std::vector<Lifetime> lives = lifetimes(graph);
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    const std::size_t asked = lives[at(v)].last_unpack;
    saved[at(v)] = asked != Lifetime::kNever && asked > event;
    // During the event what it ends is there beside what it makes.
    free[at(v)] = before.alive(v) || before.unpacked(v) || walk.alive(v) || walk.unpacked(v) || graph.flow.is_leaf(v);
    // Nothing has been replayed before the backward pass; after that, what was overwritten may be there again.
    lost[at(v)] = walk.overwritten(v) && !before.settled();
  }
}

Relaxation::Relaxation(const StepGraph& graph, Moment moment, SecondsCount count)
    : graph_(graph), moment_(std::move(moment)), readers_(graph.values.size()), relevant_(graph.ops.size(), 0) {
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    weights_.push_back(static_cast<double>(graph.step_bytes(v)));
    add_ways(v, count);
  }
  for (const OpInfo& op : graph.ops) op_seconds_.push_back(count.replay * op.seconds);
  double all = 0;
  for (OpId op = moment_.ops - 1; op >= 0; --op) {
    // Readers stand after producers: all who could ask for this operator's outputs are known.
    for (const Output& out : graph.flow.outputs(op)) {
      const std::size_t v = at(out.value);
      if (!moment_.free[v] && (moment_.saved[v] || !readers_[v].empty())) relevant_[at(op)] = 1;
    }
    if (!relevant_[at(op)]) continue;
    all += op_seconds_[at(op)];
    for (ValueId input : graph.flow.inputs(op)) {
      auto& readers = readers_[at(input)];
      if (!moment_.free[at(input)] && (readers.empty() || readers.back() != op)) readers.push_back(op);
    }
  }
  if (all > 0) scale_ = kCapacityOfAllSeconds / all;
}

void Relaxation::add_ways(ValueId v, const SecondsCount& count) {
  const Bytes bytes = graph_.step_bytes(v);
  for (const Action action : legal_actions(graph_, v)) {
    if (is_moved(action)) {
      ways_.push_back(
          {action, seconds_of(*graph_.moves.to(action.home), bytes, count) * share_of(graph_.moves, action.home), 0});
    } else if (is_compressed(action)) {
      const Encoding& encoding = *find_encoding(graph_.values[at(v)].encodings, action.codec);
      ways_.push_back({action, count.encode * encoding.encode_seconds + count.decode * encoding.decode_seconds,
                       static_cast<double>(encoding.bytes) / static_cast<double>(bytes)});
    }
  }
  first_way_.push_back(ways_.size());
}

Relaxation::Priced Relaxation::solve(double price) const {
  // A node on the source's side is an operator that runs again, or a value that such an operator reads.
  std::vector<std::int32_t> node_of(at(moment_.ops), -1);
  std::int32_t nodes = 0;
  for (OpId op = 0; op < moment_.ops; ++op) {
    if (relevant_[at(op)]) node_of[at(op)] = nodes++;
  }
  const std::int32_t operators = nodes;
  for (OpId op = 0; op < moment_.ops; ++op) {
    if (!relevant_[at(op)]) continue;
    for (const Output& out : graph_.flow.outputs(op)) {
      if (!moment_.free[at(out.value)] && readers_[at(out.value)].size() > 1) ++nodes;
    }
  }
  // Beyond the price of everything a capacity makes no more difference.
  const auto capacity = [&](std::size_t v, For whom) {
    const double units = cheapest(v, price, whom).cost(price) * scale_;
    return static_cast<CutNetwork::Capacity>(std::min(units, 4 * kCapacityOfAllSeconds));
  };
  CutNetwork network(nodes);
  std::int32_t next = operators;
  for (OpId op = 0; op < moment_.ops; ++op) {
    const std::int32_t node = node_of[at(op)];
    if (node < 0) continue;
    network.to_sink(node, static_cast<CutNetwork::Capacity>(op_seconds_[at(op)] * scale_));
    for (const Output& out : graph_.flow.outputs(op)) {
      const std::size_t v = at(out.value);
      if (moment_.free[v]) continue;
      CutNetwork::Capacity weight = capacity(v, For::ReplaysToo);
      if (moment_.saved[v]) {
        // What it takes for backward alone, and what more where a replay reads it.
        const CutNetwork::Capacity saved = capacity(v, For::BackwardAlone);
        if (saved > 0) network.from_source(node, saved);
        weight -= saved;
      }
      if (weight <= 0) continue;
      if (readers_[v].size() == 1) {
        network.edge(node_of[at(readers_[v].front())], node, weight);
      } else if (readers_[v].size() > 1) {
        const std::int32_t value = next++;
        for (OpId reader : readers_[v]) network.edge(node_of[at(reader)], value, CutNetwork::kInfinite);
        network.edge(value, node, weight);
      }
    }
  }
  const CutNetwork::Cut cut = network.minimum();
  std::vector<char> replayed(graph_.ops.size(), 0);
  for (OpId op = 0; op < moment_.ops; ++op) {
    if (node_of[at(op)] >= 0) replayed[at(op)] = cut.source_side[at(node_of[at(op)])];
  }
  return {weighed(std::move(replayed), price), static_cast<double>(cut.capacity) / scale_};
}

Relaxation::For Relaxation::for_whom(ValueId v, const std::vector<char>& replayed) const {
  const bool read = std::ranges::any_of(readers_[at(v)], [&](OpId op) { return replayed[at(op)] != 0; });
  return read ? For::ReplaysToo : For::BackwardAlone;
}

Relaxation::Away Relaxation::cheapest(std::size_t v, double price, For whom) const {
  Away best{kKeep, moment_.lost[v] ? kImpossible : 0, weights_[v]};
  for (std::size_t i = first_way_[v]; i < first_way_[v + 1]; ++i) {
    const Way& way = ways_[i];
    // At a later moment nothing but the image may be there, of what a replay read before.
    if (is_lossy(way.action) && whom == For::ReplaysToo && !moment_.several) continue;
    const Away other{way.action, way.seconds, way.share * weights_[v]};
    if (other.cost(price) < best.cost(price)) best = other;
  }
  return best;
}

bool Relaxation::needed(ValueId v, const std::vector<char>& replayed) const {
  return moment_.saved[at(v)] || for_whom(v, replayed) == For::ReplaysToo;
}

RelaxedChoice Relaxation::weighed(std::vector<char> replayed, double price) const {
  RelaxedChoice choice;
  choice.away.assign(weights_.size(), kKeep);
  for (OpId op = 0; op < moment_.ops; ++op) {
    if (replayed[at(op)]) {
      choice.seconds += op_seconds_[at(op)];
      continue;
    }
    for (const Output& out : graph_.flow.outputs(op)) {
      const std::size_t v = at(out.value);
      if (moment_.free[v] || !needed(out.value, replayed)) continue;
      const Away away = cheapest(v, price, for_whom(out.value, replayed));
      choice.away[v] = away.action;
      choice.seconds += away.seconds;
      choice.weight += away.weight;
    }
  }
  choice.replayed = std::move(replayed);
  return choice;
}

RelaxedChoice Relaxation::best(double price) const {
  if (std::isfinite(price)) return solve(price).choice;
  return ways_.empty() ? everything_again() : solve(kAnyPrice).choice;
}

RelaxedChoice Relaxation::everything_again() const {
  std::vector<char> replayed(graph_.ops.size(), 0);
  for (OpId op = moment_.ops - 1; op >= 0; --op) {
    replayed[at(op)] = std::ranges::any_of(graph_.flow.outputs(op), [&](const Output& out) {
      return !moment_.free[at(out.value)] && (weights_[at(out.value)] > 0 || moment_.lost[at(out.value)]) &&
             needed(out.value, replayed);
    });
  }
  return weighed(std::move(replayed), 0);
}

std::vector<RelaxedChoice> Relaxation::hull(std::size_t limit) const {
  std::vector<RelaxedChoice> found{best(0), best(std::numeric_limits<double>::infinity())};
  // The widest gap first, so that a hull that is cut short is still evenly spread.
  struct Gap {
    double width;
    RelaxedChoice more, less;
    bool operator<(const Gap& other) const { return width < other.width; }
  };
  std::priority_queue<Gap> gaps;
  gaps.push({found[0].weight - found[1].weight, found[0], found[1]});
  while (!gaps.empty() && found.size() < limit) {
    const Gap gap = gaps.top();
    gaps.pop();
    if (gap.width <= 0 || gap.less.seconds <= gap.more.seconds) continue;
    const double slope = (gap.less.seconds - gap.more.seconds) / gap.width;
    RelaxedChoice between = best(slope);
    if (between.weight >= gap.more.weight || between.weight <= gap.less.weight) continue;
    gaps.push({gap.more.weight - between.weight, gap.more, between});
    gaps.push({between.weight - gap.less.weight, between, gap.less});
    found.push_back(std::move(between));
  }
  std::ranges::sort(found, std::ranges::greater(), &RelaxedChoice::weight);
  return found;
}

Relaxation::Bound Relaxation::least_seconds(double weight) const {
  RelaxedChoice more = best(0);
  if (weight < 0) return {std::numeric_limits<double>::infinity(), more};
  if (more.weight <= weight) return {more.seconds, more};
  RelaxedChoice less = best(std::numeric_limits<double>::infinity());
  double bound = 0;
  // Each cut gives a bound that holds; the one whose line passes between its neighbours around `weight` is the best.
  for (int i = 0; i < 100 && more.weight > less.weight && less.seconds > more.seconds; ++i) {
    const double slope = (less.seconds - more.seconds) / (more.weight - less.weight);
    Priced between = solve(slope);
    bound = std::max(bound, between.bound - slope * weight);
    const double found = between.choice.weight;
    if (found >= more.weight || found <= less.weight) break;
    (found > weight ? more : less) = std::move(between.choice);
    if (less.weight == weight) break;
  }
  return {bound, std::move(more)};
}

std::vector<Action> Relaxation::actions(const RelaxedChoice& choice) const {
  std::vector<Action> actions(graph_.values.size(), kRecompute);
  for (ValueId v = 0; v < graph_.flow.values(); ++v) {
    const OpId op = graph_.flow.producer(v);
    const bool there = graph_.flow.is_leaf(v) || (op < moment_.ops && needed(v, choice.replayed) &&
                                                  (moment_.free[at(v)] || !choice.replayed[at(op)]));
    if (there) actions[at(v)] = choice.away[at(v)];
  }
  return actions;
}

}  // namespace snug::plan
