#include "snug/plan/step/segments.h"

#include <algorithm>
#include <utility>

namespace snug::plan {

namespace {
constexpr OpId kNear = 4;
}

SegmentCursor::SegmentCursor(std::vector<SegmentRange> ranges) : ranges_(std::move(ranges)) {
  std::ranges::sort(ranges_, [](const SegmentRange& a, const SegmentRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
}

SegmentId SegmentCursor::enter(Dataflow& flow, OpId op) {
  while (!open_.empty() && open_.back().end <= op) open_.pop_back();
  for (; next_ < ranges_.size() && ranges_[next_].begin <= op; ++next_) {
    if (ranges_[next_].end <= op) continue;
    const SegmentId parent = open_.empty() ? kRootSegment : open_.back().id;
    open_.push_back({flow.open_segment(parent), ranges_[next_].end});
  }
  return open_.empty() ? kRootSegment : open_.back().id;
}

std::vector<OpId> ends_with_readers(const Dataflow& flow) {
  // First where the last reader of anything that an operator made stands.
  std::vector<OpId> ends(static_cast<std::size_t>(flow.ops()));
  for (OpId op = 0; op < flow.ops(); ++op) {
    ends[static_cast<std::size_t>(op)] = op;
    for (ValueId v : flow.inputs(op)) {
      if (!flow.is_leaf(v)) ends[static_cast<std::size_t>(flow.producer(v))] = op;
    }
  }
  for (OpId op = 0; op < flow.ops(); ++op) {
    OpId& end = ends[static_cast<std::size_t>(op)];
    // What is read far away, as residuals are, ends with its operator.
    end = end <= op + kNear ? end + 1 : op + 1;
  }
  return ends;
}

std::vector<SegmentRange> runs_with_readers(const Dataflow& flow, const std::vector<char>& marked) {
  const std::vector<OpId> ends = ends_with_readers(flow);
  std::vector<SegmentRange> runs;
  for (OpId op = 0; op < flow.ops(); ++op) {
    if (!marked[static_cast<std::size_t>(op)]) continue;
    if (runs.empty() || runs.back().end <= op) runs.push_back({op, op});
    runs.back().end = std::max(runs.back().end, ends[static_cast<std::size_t>(op)]);
  }
  return runs;
}

Dataflow with_segments(const Dataflow& flow, std::span<const SegmentRange> ranges) {
  if (ranges.empty()) return flow;
  Dataflow result = flow;
  SegmentCursor cursor({ranges.begin(), ranges.end()});
  std::vector<SegmentId> by_op;
  for (OpId op = 0; op < flow.ops(); ++op) by_op.push_back(cursor.enter(result, op));
  result.set_segments(std::move(by_op));
  return result;
}

}  // namespace snug::plan
