#include "snug/plan/search/change.h"

#include <algorithm>
#include <utility>

#include "snug/plan/step/pieces.h"
#include "snug/plan/step/segments.h"

namespace snug::plan {
namespace {

struct Apply {
  const MemoryPlan& plan;

  std::optional<MemoryPlan> operator()(const SetAction& set) const {
    if (plan.action(set.value) == set.action) return std::nullopt;
    return with_action(plan, set.value, set.action);
  }

  std::optional<MemoryPlan> operator()(const ToggleSegment& toggle) const {
    MemoryPlan next = plan;
    if (std::erase(next.segments, toggle.range) > 0) return next;
    const auto fits = [&](const SegmentRange& other) { return nest_or_apart(other, toggle.range); };
    if (!std::ranges::all_of(next.segments, fits)) return std::nullopt;
    next.segments.push_back(toggle.range);
    return next;
  }
};

}  // namespace

bool nest_or_apart(const SegmentRange& a, const SegmentRange& b) {
  return a.end <= b.begin || b.end <= a.begin || (a.begin <= b.begin && b.end <= a.end) ||
         (b.begin <= a.begin && a.end <= b.end);
}

std::optional<MemoryPlan> changed(const MemoryPlan& plan, const Change& change) {
  return std::visit(Apply{plan}, change);
}

std::vector<SegmentRange> likely_segments(const StepGraph& graph, std::size_t pieces, std::size_t in_a_row) {
  std::vector<SegmentRange> ranges;
  const std::vector<OpId> ends = ends_with_readers(graph.flow);
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    ranges.push_back({op, ends[static_cast<std::size_t>(op)]});
    ranges.push_back({op, op + 1});
  }
  const std::vector<OpId> cuts = chain_cuts(graph, pieces);
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
    for (std::size_t k = i + 1; k < cuts.size() && k <= i + in_a_row; ++k) ranges.push_back({cuts[i], cuts[k]});
  }
  std::ranges::sort(ranges, {}, [](const SegmentRange& range) { return std::pair(range.begin, range.end); });
  // Not std::ranges::unique: the fuzzers are built by clang 14, which does not compile GCC 12's views.
  ranges.erase(std::unique(ranges.begin(), ranges.end()), ranges.end());
  return ranges;
}

}  // namespace snug::plan
