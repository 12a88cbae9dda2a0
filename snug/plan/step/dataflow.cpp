#include "snug/plan/step/dataflow.h"

#include <utility>

namespace snug::plan {

Dataflow::Dataflow() : input_begin_{0}, output_begin_{0}, parent_{kRootSegment} {}

ValueId Dataflow::add_leaf() {
  producer_.push_back(kNoOp);
  scope_.push_back(kRootSegment);
  return values() - 1;
}

OpId Dataflow::add_op(std::span<const ValueId> inputs, SegmentId segment, Runs runs) {
  inputs_.insert(inputs_.end(), inputs.begin(), inputs.end());
  input_begin_.push_back(static_cast<std::int32_t>(inputs_.size()));
  output_begin_.push_back(static_cast<std::int32_t>(outputs_.size()));
  segment_of_.push_back(segment);
  runs_.push_back(runs);
  group_.push_back(kAlwaysThere);
  widen_scopes(ops() - 1);
  return ops() - 1;
}

void Dataflow::widen_scopes(OpId op) {
  for (ValueId input : inputs(op)) scope_[at(input)] = common_segment(scope_[at(input)], segment(op));
}

void Dataflow::set_segments(std::vector<SegmentId> by_op) {
  segment_of_ = std::move(by_op);
  for (ValueId v = 0; v < values(); ++v) scope_[at(v)] = is_leaf(v) ? kRootSegment : segment(producer(v));
  for (OpId op = 0; op < ops(); ++op) widen_scopes(op);
}

ValueId Dataflow::add_output(ValueId overwrites) {
  producer_.push_back(ops() - 1);
  scope_.push_back(segment_of_.back());
  outputs_.push_back({values() - 1, overwrites});
  output_begin_.back() = static_cast<std::int32_t>(outputs_.size());
  return values() - 1;
}

SegmentId Dataflow::open_segment(SegmentId parent) {
  parent_.push_back(parent);
  return segments() - 1;
}

SegmentId Dataflow::common_segment(SegmentId a, SegmentId b) const {
  // A parent is older than its children, so the younger of the two cannot enclose the other.
  while (a != b) {
    if (a > b) {
      a = parent(a);
    } else {
      b = parent(b);
    }
  }
  return a;
}

}  // namespace snug::plan
