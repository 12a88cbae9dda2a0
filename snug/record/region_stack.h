#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstdint>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/plan/step/action.h"
#include "snug/plan/step/dataflow.h"
#include "snug/record/operator_traits.h"
#include "snug/record/selective.h"

namespace snug::record {

/// What a region says of the values that operators make in it.
struct RegionTerms {
  bool recompute = false;       ///< what autograd saves of them is dropped, unless the policy says otherwise
  SelectivePolicy policy = {};  ///< asked about each operator
  Bytes min_offload = 0;        ///< what is to be offloaded and is smaller is kept
};

/// What the innermost region says of an operator's results.
struct RegionVerdict {
  plan::Must must = plan::Must::Nothing;
  plan::Action preferred = plan::kRecompute;
};

/// The open regions of a tape; the innermost one counts. Each is a segment, unless segments are a plan's. Remembers of
/// each segment whether it is recomputed, so that a value which leaves a region that drops it is kept, unless an
/// enclosing region can make it again. Not synchronized.
class RegionStack {
 public:
  /// Opens a segment of its own in `flow`.
  void open(plan::Dataflow& flow, RegionTerms terms);
  /// Segments are a plan's: only what the policy says must be counts.
  void open_in_plan(RegionTerms terms);
  void close() { open_.pop_back(); }
  /// Segments that a plan has opened, so many in all: no region's, and none of them recomputes by itself.
  void add_planned_segments(plan::SegmentId segments);

  /// Of the innermost region.
  [[nodiscard]] plan::SegmentId segment() const { return open_.back().segment; }
  /// Throws what the policy does.
  RegionVerdict ask(const OperatorTraits& traits);
  /// Whether contents of so many bytes are worth moving.
  [[nodiscard]] bool moves(Bytes bytes) const { return bytes >= open_.back().terms.min_offload; }

  /// Whether a value that is read here must be kept because the region that drops it, or the region that reads it,
  /// could not get it back on its own.
  [[nodiscard]] bool escapes(const plan::Dataflow& flow, plan::ValueId value) const;
  /// Whether an operator's value is kept when autograd saves it.
  [[nodiscard]] bool keeps_when_saved(const plan::Dataflow& flow, plan::ValueId value, plan::Must must) const;

 private:
  struct Open {
    plan::SegmentId segment = plan::kRootSegment;
    RegionTerms terms = {};
    ska::flat_hash_map<const OperatorTraits*, std::int64_t> invocations = {};
  };
  struct Segment {
    bool recompute = false;  // its own region drops what autograd saves
    bool covered = false;    // that one does, or one around it
  };
  [[nodiscard]] bool covered(plan::SegmentId segment) const { return segments_[plan::at(segment)].covered; }

  std::vector<Open> open_{1};
  std::vector<Segment> segments_{1};  // by SegmentId
};

}  // namespace snug::record
