#include "snug/plan/step/dataflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "snug/plan/step/segments.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;

ValueId add(Dataflow& flow, const std::vector<ValueId>& inputs, ValueId overwrites = kNoValue) {
  flow.add_op(inputs, kRootSegment);
  return flow.add_output(overwrites);
}

std::vector<SegmentId> segments_of(const Dataflow& flow) {
  std::vector<SegmentId> all;
  for (OpId op = 0; op < flow.ops(); ++op) all.push_back(flow.segment(op));
  return all;
}

Dataflow row_of(int ops) {
  Dataflow flow;
  ValueId v = flow.add_leaf();
  for (int i = 0; i < ops; ++i) v = add(flow, {v});
  return flow;
}

TEST(Dataflow, IsEmptyAtFirstButForTheRootSegment) {
  const Dataflow flow;
  EXPECT_EQ(flow.ops(), 0);
  EXPECT_EQ(flow.values(), 0);
  EXPECT_EQ(flow.segments(), 1);
  EXPECT_EQ(flow.parent(kRootSegment), kRootSegment);
}

TEST(Dataflow, NumbersValuesAsTheyAreFirstSeenAndKeepsRepeatedInputs) {
  Dataflow flow;
  const ValueId a = flow.add_leaf();
  const ValueId b = add(flow, {a, a});
  const ValueId c = flow.add_leaf();
  const ValueId d = add(flow, {b, c, b});
  EXPECT_EQ((std::vector{a, b, c, d}), (std::vector{0, 1, 2, 3}));
  EXPECT_THAT(flow.inputs(0), ElementsAre(a, a));
  EXPECT_THAT(flow.inputs(1), ElementsAre(b, c, b));
  EXPECT_EQ(flow.producer(b), 0);
  EXPECT_EQ(flow.producer(d), 1);
  EXPECT_TRUE(flow.is_leaf(a));
  EXPECT_TRUE(flow.is_leaf(c));
  EXPECT_FALSE(flow.is_leaf(d));
}

TEST(Dataflow, GroupsSeveralOutputsUnderTheirOperatorAndKeepsWhatTheyOverwrite) {
  Dataflow flow;
  const ValueId a = add(flow, {});
  const std::vector<ValueId> read{a};
  flow.add_op(read, kRootSegment);
  const ValueId b = flow.add_output(a);
  const ValueId c = flow.add_output();
  flow.add_op({}, kRootSegment);  // makes nothing
  EXPECT_THAT(flow.outputs(0), ElementsAre(Output{a, kNoValue}));
  EXPECT_THAT(flow.outputs(1), ElementsAre(Output{b, a}, Output{c, kNoValue}));
  EXPECT_TRUE(flow.outputs(2).empty());
  EXPECT_TRUE(flow.inputs(2).empty());
  EXPECT_EQ(flow.producer(b), 1);
  EXPECT_EQ(flow.producer(c), 1);
}

TEST(Dataflow, MakesALeafOfAnOperatorsResult) {
  Dataflow flow;
  const ValueId opaque = add(flow, {});
  flow.make_leaf(opaque);
  EXPECT_TRUE(flow.is_leaf(opaque));
  EXPECT_EQ(flow.producer(opaque), kNoOp);
  EXPECT_THAT(flow.outputs(0), ElementsAre(Output{opaque, kNoValue}));
}

TEST(Dataflow, FindsTheInnermostSegmentThatEnclosesTwo) {
  Dataflow flow;
  const SegmentId outer = flow.open_segment(kRootSegment);
  const SegmentId left = flow.open_segment(outer);
  const SegmentId right = flow.open_segment(outer);
  const SegmentId deep = flow.open_segment(left);
  const SegmentId aside = flow.open_segment(kRootSegment);
  EXPECT_EQ(flow.common_segment(left, right), outer);
  EXPECT_EQ(flow.common_segment(deep, right), outer);
  EXPECT_EQ(flow.common_segment(deep, left), left);
  EXPECT_EQ(flow.common_segment(deep, deep), deep);
  EXPECT_EQ(flow.common_segment(deep, aside), kRootSegment);
  EXPECT_EQ(flow.common_segment(kRootSegment, deep), kRootSegment);
}

TEST(Dataflow, IsEqualOnlyWithTheSameOperatorsValuesAndSegments) {
  const Dataflow flow = row_of(3);
  EXPECT_EQ(row_of(3), flow);
  EXPECT_NE(row_of(4), flow);
  Dataflow in_place = row_of(2);
  add(in_place, {2}, 2);
  EXPECT_NE(in_place, flow);
  Dataflow grouped = flow;
  grouped.set_segments({0, grouped.open_segment(kRootSegment), 0});
  EXPECT_NE(grouped, flow);
}

TEST(Dataflow, KnowsOutsideOfWhichSegmentAValueIsUnknown) {
  // A row of operators, each reading what the one before made; the last value is read by nobody.
  const std::vector<SegmentRange> ranges{{1, 7}, {2, 4}, {4, 6}};
  const Dataflow flow = with_segments(row_of(8), ranges);
  std::vector<SegmentId> scopes;
  for (OpId op = 0; op < flow.ops(); ++op) scopes.push_back(flow.scope(flow.outputs(op)[0].value));
  EXPECT_THAT(scopes, ElementsAre(0, 1, 2, 1, 3, 1, 0, 0));
}

TEST(WithSegments, PutsEachOperatorIntoTheInnermostRange) {
  const std::vector<SegmentRange> ranges{{1, 7}, {2, 4}, {4, 6}, {8, 9}};
  const Dataflow flow = with_segments(row_of(10), ranges);
  EXPECT_THAT(segments_of(flow), ElementsAre(0, 1, 2, 2, 3, 3, 1, 0, 4, 0));
  EXPECT_EQ(flow.parent(1), kRootSegment);
  EXPECT_EQ(flow.parent(2), 1);
  EXPECT_EQ(flow.parent(3), 1);
  EXPECT_EQ(flow.parent(4), kRootSegment);
}

TEST(WithSegments, TakesRangesInAnyOrderAndNestsThoseThatBeginTogether) {
  const std::vector<SegmentRange> ranges{{0, 2}, {3, 5}, {0, 4}, {3, 4}};
  const Dataflow flow = with_segments(row_of(5), std::span(ranges).first(1));
  EXPECT_THAT(segments_of(flow), ElementsAre(1, 1, 0, 0, 0));
  const std::vector<SegmentRange> nested{{0, 2}, {0, 4}};
  const Dataflow both = with_segments(row_of(5), nested);
  EXPECT_THAT(segments_of(both), ElementsAre(2, 2, 1, 1, 0));
  EXPECT_EQ(both.parent(2), 1);
}

TEST(WithSegments, LeavesOutEmptyRangesAndWhatLiesBehindTheLastOperator) {
  const std::vector<SegmentRange> ranges{{1, 1}, {2, 50}, {60, 70}};
  const Dataflow flow = with_segments(row_of(4), ranges);
  EXPECT_THAT(segments_of(flow), ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(flow.segments(), 2);
}

TEST(WithSegments, ChangesNothingWithoutRanges) { EXPECT_EQ(with_segments(row_of(3), {}), row_of(3)); }

}  // namespace
}  // namespace snug::plan
