#include "snug/plan/segments.h"

#include <algorithm>
#include <utility>

namespace snug::plan {

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

Dataflow with_segments(const Dataflow& flow, std::span<const SegmentRange> ranges) {
  if (ranges.empty()) return flow;
  Dataflow result = flow;
  SegmentCursor cursor({ranges.begin(), ranges.end()});
  for (OpId op = 0; op < flow.ops(); ++op) result.set_segment(op, cursor.enter(result, op));
  return result;
}

}  // namespace snug::plan
