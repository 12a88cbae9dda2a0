#include "snug/plan/search/neighbourhood.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "snug/plan/run/staging.h"
#include "snug/plan/search/change.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

constexpr OpId kLongestNewSegment = 40;
/// Memory for copies, in sizes of the largest value.
constexpr std::array kSizesOfStaging = {0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0};

/// Each range once, and none across another.
bool nest_or_are_disjoint(const std::vector<SegmentRange>& ranges) {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (ranges[i] == ranges[k] || !nest_or_apart(ranges[i], ranges[k])) return false;
    }
  }
  return true;
}

}  // namespace

Neighbourhood::Neighbourhood(const StepGraph& graph, Bytes least) : graph_(graph) {
  std::map<std::tuple<std::string, std::string, Bytes>, std::vector<ValueId>> kinds;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    const Bytes bytes = graph.step_bytes(v);
    if (!has_choice(graph, v) || bytes <= least) continue;
    values_.push_back(v);
    if (may_move(graph, v)) largest_ = std::max(largest_, bytes);
    const OpInfo& op = graph.ops[at(graph.flow.producer(v))];
    kinds[{op.name, op.inputs, bytes}].push_back(v);
  }
  for (auto& [kind, values] : kinds) {
    if (values.size() > 1) kinds_.push_back(std::move(values));
  }
}

std::optional<MemoryPlan> Neighbourhood::near(const MemoryPlan& plan, Chance& chance) const {
  MemoryPlan next = plan;
  const auto changed = [&] {
    if (!kinds_.empty() && chance.roll(10) < 6) return change_kind(next, chance);
    if (graph_.moves.overlapping() != Home::Device && chance.roll(20) < 3) return change_staging(next, chance);
    const std::uint32_t side = chance.roll(10);
    if (side >= 7) return change_segments(next, chance);
    change_one(next, chance);
    if (side >= 5) change_one(next, chance);
    return true;
  };
  const auto is_other = [&] {
    return next.actions != plan.actions || next.segments != plan.segments || next.staging != plan.staging;
  };
  return changed() && is_other() ? std::optional(std::move(next)) : std::nullopt;
}

void Neighbourhood::change_one(MemoryPlan& plan, Chance& chance) const {
  const ValueId value = chance.one_of(values_);
  const std::vector<Action> others = other_actions(graph_, plan, value);
  plan.actions[at(value)] = chance.one_of(others);
}

/// Two values of a kind change places, or all of them in a row get the same action.
bool Neighbourhood::change_kind(MemoryPlan& plan, Chance& chance) const {
  const std::vector<ValueId>& kind = chance.one_of(kinds_);
  const std::uint32_t one = chance.roll(kind.size()), other = chance.roll(kind.size());
  const auto may_be = [&](ValueId value, const Action& action) {
    return std::ranges::count(legal_actions(graph_, value), action) > 0;
  };
  if (chance.roll(2) == 0) {
    Action &a = plan.actions[at(kind[one])], &b = plan.actions[at(kind[other])];
    if (a == b || !may_be(kind[one], b) || !may_be(kind[other], a)) return false;
    std::swap(a, b);
    return true;
  }
  const std::vector<Action> others = other_actions(graph_, plan, kind[one]);
  const Action action = chance.one_of(others);
  for (std::uint32_t i = std::min(one, other); i <= std::max(one, other); ++i) {
    if (may_be(kind[i], action)) plan.actions[at(kind[i])] = action;
  }
  return true;
}

bool Neighbourhood::change_staging(MemoryPlan& plan, Chance& chance) const {
  if (std::ranges::none_of(plan.actions, is_moved)) return false;
  const Bytes leaving = plan.staging.leaving;
  const auto bytes = static_cast<Bytes>(chance.one_of(kSizesOfStaging) * static_cast<double>(largest_));
  switch (chance.roll(3)) {
    case 0:
      plan.staging.leaving = bytes;
      break;
    case 1:
      plan.staging.arriving = plan.staging.order.empty() ? 0 : bytes;
      break;
    default:
      const FetchFrom from = chance.roll(2) == 0 ? FetchFrom::TheBeginning : FetchFrom::ThePeak;
      plan = staged(graph_, std::move(plan), leaving, bytes, from);
  }
  return true;
}

/// One goes, comes, or gets another end.
bool Neighbourhood::change_segments(MemoryPlan& plan, Chance& chance) const {
  std::vector<SegmentRange>& segments = plan.segments;
  const std::uint32_t side = chance.roll(3);
  if (side == 0) {
    if (segments.empty()) return false;
    segments.erase(segments.begin() + chance.roll(segments.size()));
    return true;
  }
  const OpId ops = graph_.flow.ops();
  if (side == 1 || segments.empty()) {
    const auto begin = static_cast<OpId>(chance.roll(at(ops)));
    segments.push_back({begin, begin + 1 + static_cast<OpId>(chance.roll(at(kLongestNewSegment)))});
  } else {
    SegmentRange& range = segments[chance.roll(segments.size())];
    (chance.roll(2) == 0 ? range.begin : range.end) += static_cast<OpId>(chance.roll(7)) - 3;
  }
  const auto possible = [&](const SegmentRange& r) { return r.begin >= 0 && r.begin < r.end && r.end <= ops; };
  return std::ranges::all_of(segments, possible) && nest_or_are_disjoint(segments);
}

}  // namespace snug::plan
