#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "snug/plan/step/ids.h"

namespace snug::plan {

/// An output of an operator. `overwrites` is the value whose storage it took over when the operator wrote in place,
/// else kNoValue.
struct Output {
  ValueId value = kNoValue;
  ValueId overwrites = kNoValue;
  friend bool operator==(const Output&, const Output&) = default;
};

/// Who has to take part when an operator runs again.
enum class Runs : std::uint8_t {
  Alone,
  Together  ///< other processes as well, at the same place: a collective
};

/// Leaves that come and go together in a step, as weights that FSDP2 gathers for a module: a number for each group.
using GroupId = std::int32_t;
inline constexpr GroupId kAlwaysThere = -1;
inline constexpr GroupId kSeveralGroups = -2;

/// Which operator reads and makes which values: the skeleton that recording, replay and simulation share. Grows at the
/// end only. Values that no operator made are leaves.
class Dataflow {
 public:
  Dataflow();

  ValueId add_leaf();

  /// Appends an operator that reads `inputs` (repeats allowed) inside `segment`. Outputs follow with add_output().
  OpId add_op(std::span<const ValueId> inputs, SegmentId segment, Runs runs = Runs::Alone);

  /// The newest operator reads leaves of that group: it runs again where these are there, and nobody else says when.
  void reads_group(GroupId group) { group_.back() = group; }

  /// Appends an output to the newest operator and returns its value. `overwrites` as in Output.
  ValueId add_output(ValueId overwrites = kNoValue);

  /// A value made by an operator becomes a leaf: its contents came from elsewhere.
  void make_leaf(ValueId value) { producer_[static_cast<std::size_t>(value)] = kNoOp; }

  /// Opens a segment inside `parent`. Operators join it by add_op or set_segments.
  SegmentId open_segment(SegmentId parent);
  /// Moves all operators at once.
  void set_segments(std::vector<SegmentId> by_op);

  [[nodiscard]] OpId ops() const noexcept { return static_cast<OpId>(input_begin_.size()) - 1; }
  [[nodiscard]] ValueId values() const noexcept { return static_cast<ValueId>(producer_.size()); }
  [[nodiscard]] SegmentId segments() const noexcept { return static_cast<SegmentId>(parent_.size()); }

  // Here, because simulations do little else.
  [[nodiscard]] std::span<const ValueId> inputs(OpId op) const { return part(inputs_, input_begin_, op); }
  [[nodiscard]] std::span<const Output> outputs(OpId op) const { return part(outputs_, output_begin_, op); }
  [[nodiscard]] OpId producer(ValueId value) const { return producer_[static_cast<std::size_t>(value)]; }
  [[nodiscard]] bool is_leaf(ValueId value) const { return producer(value) == kNoOp; }
  [[nodiscard]] Runs runs(OpId op) const { return runs_[static_cast<std::size_t>(op)]; }
  [[nodiscard]] bool runs_together(OpId op) const { return runs(op) == Runs::Together; }
  [[nodiscard]] GroupId group(OpId op) const { return group_[static_cast<std::size_t>(op)]; }
  [[nodiscard]] SegmentId segment(OpId op) const { return segment_of_[static_cast<std::size_t>(op)]; }

  [[nodiscard]] SegmentId parent(SegmentId segment) const { return parent_[static_cast<std::size_t>(segment)]; }

  /// The innermost segment that encloses the producer and all readers of a value: outside of it nobody knows it.
  [[nodiscard]] SegmentId scope(ValueId value) const { return scope_[static_cast<std::size_t>(value)]; }

  /// The innermost segment that encloses both.
  [[nodiscard]] SegmentId common_segment(SegmentId a, SegmentId b) const;

  friend bool operator==(const Dataflow&, const Dataflow&) = default;

 private:
  template <class T>
  static std::span<const T> part(const std::vector<T>& all, const std::vector<std::int32_t>& begin, OpId op) {
    const auto i = static_cast<std::size_t>(op);
    return {all.data() + begin[i], static_cast<std::size_t>(begin[i + 1] - begin[i])};
  }
  void widen_scopes(OpId op);

  std::vector<std::int32_t> input_begin_;  // one more than there are operators
  std::vector<ValueId> inputs_;
  std::vector<std::int32_t> output_begin_;  // likewise
  std::vector<Output> outputs_;
  std::vector<SegmentId> segment_of_;
  std::vector<Runs> runs_;      // by OpId
  std::vector<GroupId> group_;  // by OpId
  std::vector<OpId> producer_;
  std::vector<SegmentId> scope_;   // by ValueId
  std::vector<SegmentId> parent_;  // by SegmentId
};

}  // namespace snug::plan
