#pragma once

#include <span>
#include <vector>

#include "snug/plan/step/dataflow.h"
#include "snug/plan/step/memory_plan.h"

namespace snug::plan {

/// Which segment each of the next operators belongs to, for ranges that nest or are disjoint. Operators must be asked
/// for in order; segments are opened in `flow` on the way.
class SegmentCursor {
 public:
  explicit SegmentCursor(std::vector<SegmentRange> ranges);
  /// The segment of operator `op`, which is the next one to be added to `flow`.
  SegmentId enter(Dataflow& flow, OpId op);

 private:
  struct Open {
    SegmentId id;
    OpId end;
  };
  std::vector<SegmentRange> ranges_;  // by begin, the outer before the inner
  std::size_t next_ = 0;
  std::vector<Open> open_;
};

/// By operator: where the range ends that holds it and the operators nearby that read what it makes.
std::vector<OpId> ends_with_readers(const Dataflow& flow);

/// Ranges of marked operators, each with the operators nearby that read what it makes: the segments in which those
/// values are nobody else's business.
std::vector<SegmentRange> runs_with_readers(const Dataflow& flow, const std::vector<char>& marked);

/// The same operators and values, grouped into the segments of a plan.
Dataflow with_segments(const Dataflow& flow, std::span<const SegmentRange> ranges);

}  // namespace snug::plan
