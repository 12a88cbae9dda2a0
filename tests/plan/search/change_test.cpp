#include "snug/plan/search/change.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "snug/plan/run/presets.h"
#include "snug/plan/step/pieces.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

TEST(Change, SetsAnActionAndSetsItBack) {
  const StepGraph graph = synthetic::residual_net();
  const MemoryPlan plan = plan_none(graph);
  const ValueId value = graph.flow.outputs(0).front().value;
  ASSERT_EQ(plan.action(value), kKeep);
  const auto other = changed(plan, SetAction{value, kRecompute});
  ASSERT_TRUE(other);
  EXPECT_EQ(other->action(value), kRecompute);
  EXPECT_EQ(changed(*other, SetAction{value, kKeep})->actions, plan.actions);
  EXPECT_FALSE(changed(plan, SetAction{value, kKeep})) << "it has that action already";
}

TEST(Change, AddsASegmentAndLeavesItOutAgain) {
  MemoryPlan plan;
  plan.segments = {{2, 6}};
  EXPECT_EQ(changed(plan, ToggleSegment{{3, 5}})->segments, (std::vector<SegmentRange>{{2, 6}, {3, 5}}));
  EXPECT_EQ(changed(plan, ToggleSegment{{6, 8}})->segments, (std::vector<SegmentRange>{{2, 6}, {6, 8}}));
  EXPECT_TRUE(changed(plan, ToggleSegment{{2, 6}})->segments.empty());
}

TEST(Change, RefusesASegmentThatCrossesAnother) {
  MemoryPlan plan;
  plan.segments = {{2, 6}};
  EXPECT_FALSE(changed(plan, ToggleSegment{{1, 4}}));
  EXPECT_FALSE(changed(plan, ToggleSegment{{5, 7}}));
}

TEST(LikelySegments, AreRowsOfPiecesAndOperatorsWithTheirReaders) {
  const StepGraph graph = synthetic::residual_net();
  constexpr std::size_t kPieces = 48, kInARow = 3;
  const auto segments = likely_segments(graph, kPieces, kInARow);
  const auto there = [&](SegmentRange range) { return std::ranges::find(segments, range) != segments.end(); };
  const auto cuts = chain_cuts(graph, kPieces);
  ASSERT_GT(cuts.size(), kInARow + 1);
  EXPECT_TRUE(there({cuts[0], cuts[1]}));
  EXPECT_TRUE(there({cuts[1], cuts[1 + kInARow]}));
  // The first convolution is read by the norm after it.
  EXPECT_TRUE(there({0, 1}));
  EXPECT_TRUE(there({0, 2}));
  std::set<std::pair<OpId, OpId>> once;
  for (const SegmentRange& range : segments) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_LE(range.end, graph.flow.ops());
    EXPECT_TRUE(once.emplace(range.begin, range.end).second);
  }
}

}  // namespace
}  // namespace snug::plan
