#include "snug/plan/search/every_plan.h"

#include <algorithm>
#include <utility>

#include "snug/plan/run/presets.h"
#include "snug/plan/step/legal_actions.h"

namespace snug::plan {
namespace {

/// Values of which it makes a difference what a plan says.
std::vector<ValueId> choices(const StepGraph& graph) {
  std::vector<char> read(graph.values.size(), 0);
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    for (ValueId v : graph.flow.inputs(op)) read[at(v)] = 1;
  }
  std::vector<ValueId> values;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    if (has_choice(graph, v) && (graph.values[at(v)].saved || read[at(v)])) values.push_back(v);
  }
  return values;
}

using Nesting = std::vector<SegmentRange>;

/// All sets of ranges within [begin, end) that nest or are disjoint, with and without [begin, end) itself.
std::vector<Nesting> nestings(OpId begin, OpId end, bool with_whole);

/// All ways to put nested ranges side by side into [begin, end), none of them the whole of `within`.
void side_by_side(OpId begin, OpId end, SegmentRange within, Nesting& prefix, std::vector<Nesting>& result) {
  if (begin == end) {
    result.push_back(prefix);
    return;
  }
  side_by_side(begin + 1, end, within, prefix, result);  // `begin` is in no range of this level
  for (OpId stop = begin + 1; stop <= end; ++stop) {
    if (begin == within.begin && stop == within.end) continue;
    for (const Nesting& inside : nestings(begin, stop, /*with_whole=*/true)) {
      if (inside.empty() || inside.front() != SegmentRange{begin, stop}) continue;
      Nesting longer = prefix;
      longer.insert(longer.end(), inside.begin(), inside.end());
      std::swap(prefix, longer);
      side_by_side(stop, end, within, prefix, result);
      std::swap(prefix, longer);
    }
  }
}

std::vector<Nesting> nestings(OpId begin, OpId end, bool with_whole) {
  std::vector<Nesting> inside;
  Nesting prefix;
  side_by_side(begin, end, {begin, end}, prefix, inside);
  if (!with_whole) return inside;
  std::vector<Nesting> all = inside;
  for (Nesting& nesting : inside) {
    nesting.insert(nesting.begin(), {begin, end});
    all.push_back(std::move(nesting));
  }
  return all;
}

/// The size of nestings(0, ops, false), or `most` where it is larger. With i(n) the nestings of n operators without a
/// range around all of them, and p(n) those with or without one, p(n) = 2 i(n). The first operator is in no range, or
/// in a range of the first k: i(n) = p(n - 1) + sum over k < n of i(k) p(n - k). i(n) at least doubles with n, so that
/// this ends after log2(most) rounds at the latest.
std::int64_t count_nestings(OpId ops, std::int64_t most) {
  std::vector<std::int64_t> without = {1}, any = {1};
  for (OpId n = 1; n <= ops; ++n) {
    std::int64_t count = any[at(n - 1)];
    for (OpId k = 1; k < n; ++k) {
      if (count >= most) return most;
      count += without[at(k)] * any[at(n - k)];
    }
    if (count >= most) return most;
    without.push_back(count);
    any.push_back(2 * count);
  }
  return without.back();
}

}  // namespace

std::int64_t count_plans(const StepGraph& graph, std::int64_t most) {
  std::int64_t count = count_nestings(graph.flow.ops(), most);
  for (const ValueId v : choices(graph)) {
    if (count >= most) return most;
    count *= static_cast<std::int64_t>(legal_actions(graph, v).size());
  }
  return std::min(most, count);
}

std::vector<MemoryPlan> every_plan(const StepGraph& graph) {
  const std::vector<ValueId> values = choices(graph);
  MemoryPlan plan = bare_plan(graph);
  std::vector<MemoryPlan> plans;
  // A range around everything makes no difference.
  for (const Nesting& nesting : nestings(0, graph.flow.ops(), /*with_whole=*/false)) {
    plan.segments = nesting;
    // Counts through all combinations, the first value fastest.
    std::vector<std::size_t> digits(values.size(), 0);
    for (bool more = true; more;) {
      for (std::size_t i = 0; i < values.size(); ++i)
        plan.actions[at(values[i])] = legal_actions(graph, values[i])[digits[i]];
      plans.push_back(plan);
      more = false;
      for (std::size_t i = 0; i < values.size() && !more; ++i) {
        more = ++digits[i] < legal_actions(graph, values[i]).size();
        if (!more) digits[i] = 0;
      }
    }
  }
  return plans;
}

}  // namespace snug::plan
