#include "snug/plan/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "snug/plan/pieces.h"
#include "snug/plan/simulator.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using testing::ElementsAre;

const synthetic::Chain kChain{.blocks = 9, .width = 1_MiB, .static_bytes = 10_MiB};
constexpr Bytes kSavedPerBlock = 16_MiB;  // x, norm1, 3 qkv, attended, middle, norm2, 4 wide, 4 active
constexpr double kSecondsPerBlock = 0.2 + 3 + 4 + 1 + 0.1 + 0.2 + 4 + 0.8;  // but the last two operators

TEST(PlanNone, KeepsExactlyWhatIsSaved) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const MemoryPlan plan = plan_none(graph);
  EXPECT_EQ(plan.strategy, "none");
  EXPECT_EQ(plan.fingerprint, graph.fingerprint());
  EXPECT_TRUE(plan.segments.empty());
  ASSERT_EQ(plan.actions.size(), graph.values.size());
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    EXPECT_EQ(plan.keeps(v), graph.flow.is_leaf(v) || graph.values[static_cast<std::size_t>(v)].saved) << v;
  }
  EXPECT_EQ(plan.predicted_seconds, graph.step_seconds);
  EXPECT_EQ(simulate(graph, plan).replayed_ops, 0);
  // All blocks, the input of the loss and the loss stand when backward begins, and it takes two more.
  EXPECT_EQ(plan.predicted_peak, 10_MiB + 9 * kSavedPerBlock + 1_MiB + 4_KiB + 2_MiB);
}

TEST(PlanEveryBlock, KeepsOnlyWhatCrossesFromBlockToBlock) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const MemoryPlan plan = plan_every_block(graph);
  EXPECT_EQ(plan.strategy, "every_block");
  EXPECT_EQ(plan.segments, repeated_blocks(graph));
  const Simulation run = simulate(graph, plan);
  EXPECT_EQ(run.after_forward, 10_MiB + 10 * 1_MiB + 4_KiB);
  // One block is there at a time, and its own input is kept anyway.
  EXPECT_EQ(plan.predicted_peak, 10_MiB + 9 * 1_MiB + (kSavedPerBlock - 1_MiB) + 4_KiB + 2_MiB);
  // The last two operators of a block make nothing that is saved inside it.
  EXPECT_EQ(run.replayed_ops, 9 * 8);
  EXPECT_NEAR(plan.predicted_seconds, graph.step_seconds + 9 * kSecondsPerBlock, 1e-9);
}

TEST(PlanSqrt, GroupsTheBlocksIntoAboutSqrtManySegments) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const MemoryPlan plan = plan_sqrt(graph);
  const OpId group = 3 * synthetic::kOpsPerBlock;
  EXPECT_EQ(plan.strategy, "sqrt");
  EXPECT_THAT(plan.segments, ElementsAre(SegmentRange{1, 1 + group}, SegmentRange{1 + group, 1 + 2 * group},
                                         SegmentRange{1 + 2 * group, 1 + 3 * group}));
  // The inputs of three groups, the input of the loss and the loss.
  EXPECT_EQ(simulate(graph, plan).after_forward, 10_MiB + 4 * 1_MiB + 4_KiB);
  // Two operators of the last block of each group are left out.
  EXPECT_EQ(simulate(graph, plan).replayed_ops, 3 * (group - 2));
}

TEST(PlanSqrt, HandlesACountThatIsNoSquareAndNoBlocksAtAll) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 7});
  const MemoryPlan plan = plan_sqrt(graph);
  ASSERT_EQ(plan.segments.size(), 3U);
  EXPECT_EQ(plan.segments.back(), (SegmentRange{61, 71}));
  synthetic::GraphBuilder g;
  const ValueId a = g.op("a", {g.leaf()}, 100);
  g.save(a);
  const MemoryPlan flat = plan_sqrt(g.graph());
  EXPECT_TRUE(flat.segments.empty());
  EXPECT_TRUE(flat.keeps(a));
}

TEST(PlanSegments, KeepsWhatIsReadOrSavedAcrossTheRangesAndDropsTheRest) {
  synthetic::GraphBuilder g;
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 100);
  const ValueId b = g.op("b", {a}, 100);
  const ValueId c = g.op("c", {b}, 100);
  const ValueId d = g.op("d", {c}, 100);
  for (ValueId v : {a, b, c, d}) g.save(v);
  const std::vector<SegmentRange> ranges{{2, 4}, {0, 2}};
  const MemoryPlan plan = plan_segments(g.graph(), ranges);
  EXPECT_THAT(plan.segments, ElementsAre(SegmentRange{0, 2}, SegmentRange{2, 4}));
  EXPECT_TRUE(plan.keeps(leaf));
  EXPECT_FALSE(plan.keeps(a));
  EXPECT_TRUE(plan.keeps(b));
  EXPECT_FALSE(plan.keeps(c));
  EXPECT_FALSE(plan.keeps(d));
}

TEST(PlanSegments, WithoutRangesKeepsEverything) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  EXPECT_EQ(plan_segments(graph, {}), plan_none(graph));
}

TEST(Presets, TradeTimeForMemory) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const MemoryPlan none = plan_none(graph);
  for (const MemoryPlan& plan : {plan_every_block(graph), plan_sqrt(graph)}) {
    EXPECT_LT(plan.predicted_peak, none.predicted_peak) << plan.strategy;
    EXPECT_GT(plan.predicted_seconds, none.predicted_seconds) << plan.strategy;
  }
}

}  // namespace
}  // namespace snug::plan
