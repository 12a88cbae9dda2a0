#include "snug/plan/run/presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "snug/base/errors.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/pieces.h"
#include "tests/base/fault.h"
#include "tests/plan/random_graph.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST(PlanChenSqrt, GroupsTheBlocksIntoAboutSqrtManySegments) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const MemoryPlan plan = plan_chen_sqrt(graph);
  const OpId group = 3 * synthetic::kOpsPerBlock;
  EXPECT_EQ(plan.strategy, "chen_sqrt");
  EXPECT_THAT(plan.segments, ElementsAre(SegmentRange{1, 1 + group}, SegmentRange{1 + group, 1 + 2 * group},
                                         SegmentRange{1 + 2 * group, 1 + 3 * group}));
  // The inputs of three groups, the input of the loss and the loss.
  EXPECT_EQ(simulate(graph, plan).after_forward, 10_MiB + 4 * 1_MiB + 4_KiB);
  // Two operators of the last block of each group are left out.
  EXPECT_EQ(simulate(graph, plan).replayed_ops, 3 * (group - 2));
}

TEST(PlanChenSqrt, HandlesACountThatIsNoSquareAndNoBlocksAtAll) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 7});
  const MemoryPlan plan = plan_chen_sqrt(graph);
  ASSERT_EQ(plan.segments.size(), 3U);
  EXPECT_EQ(plan.segments.back(), (SegmentRange{61, 71}));
  synthetic::GraphBuilder g;
  const ValueId a = g.op("a", {g.leaf()}, 100);
  g.save(a);
  const MemoryPlan flat = plan_chen_sqrt(g.graph());
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

TEST(PlanSequential, LeavesTheLastSegmentAloneAsCheckpointSequentialDoes) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const auto blocks = repeated_blocks(graph);
  const MemoryPlan plan = plan_sequential(graph, 4);
  // 9 blocks in 4 segments: 2, 2, 2, and 3 that are not checkpointed.
  EXPECT_EQ(plan.strategy, "sequential(4)");
  EXPECT_THAT(plan.segments,
              ElementsAre(SegmentRange{blocks[0].begin, blocks[1].end}, SegmentRange{blocks[2].begin, blocks[3].end},
                          SegmentRange{blocks[4].begin, blocks[5].end}));
  EXPECT_EQ(plan_sequential(graph, 1).actions, plan_none(graph).actions);
  EXPECT_EQ(testing::fault([&] { return plan_sequential(graph, 10); }),
            "plan: sequential: segments is 10; it must be from 1 to 9, the number of blocks");
  EXPECT_THAT(testing::fault([&] { return plan_sequential(graph, 0); }), HasSubstr("segments is 0"));
}

TEST(PlanFullUniform, ChecksPointsChunksOfWhichTheLastMayBeShorter) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 5});
  const auto blocks = repeated_blocks(graph);
  EXPECT_THAT(plan_full_uniform(graph, 3).segments,
              ElementsAre(SegmentRange{blocks[0].begin, blocks[2].end}, SegmentRange{blocks[3].begin, blocks[4].end}));
  EXPECT_EQ(plan_full_uniform(graph, 1).segments, blocks);
  EXPECT_THAT(testing::fault([&] { return plan_full_uniform(graph, 0); }), HasSubstr("layers is 0"));
  EXPECT_THAT(testing::fault([&] { return plan_full_uniform(graph, 6); }), HasSubstr("layers is 6"));
}

TEST(PlanFullBlock, CheckpointsTheFirstBlocksOnly) {
  const StepGraph graph = synthetic::gpt_like({.blocks = 5});
  const auto blocks = repeated_blocks(graph);
  EXPECT_THAT(plan_full_block(graph, 2).segments, ElementsAre(blocks[0], blocks[1]));
  EXPECT_EQ(plan_full_block(graph, 5).actions, plan_every_block(graph).actions);
  EXPECT_THAT(testing::fault([&] { return plan_full_block(graph, 6); }), HasSubstr("layers is 6"));
}

TEST(PlanSelectiveBlocks, KeepsTheNamedResultsAndReplaysTheRest) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const std::vector<std::string> kept{"aten::addmm", "aten::scaled_dot_product_attention"};
  const MemoryPlan plan = plan_selective_blocks(graph, kept);
  EXPECT_EQ(plan.strategy, "selective(aten::addmm,aten::scaled_dot_product_attention)");
  const Simulation run = simulate(graph, plan);
  for (OpId op = 0; op < graph.flow.ops(); ++op) {
    const bool named = std::ranges::count(kept, graph.ops[static_cast<std::size_t>(op)].name) > 0;
    if (named) {
      EXPECT_EQ(run.replays[static_cast<std::size_t>(op)], 0) << op;
    }
  }
  // Both norms, the first addition and the gelu of each block.
  EXPECT_EQ(run.replayed_ops, 9 * 4);
  EXPECT_EQ(testing::fault([&] { return plan_selective_blocks(graph, std::vector<std::string>{"aten::bmm"}); }),
            "plan: selective: the step has no operator \"aten::bmm\"; those it has are aten::add, aten::addmm, "
            "aten::embedding, aten::gelu, "
            "aten::loss, aten::native_layer_norm, aten::scaled_dot_product_attention");
}

TEST(PlanCoreAttention, ReplaysTheAttentionAlone) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const MemoryPlan plan = plan_core_attention(graph);
  EXPECT_EQ(plan.segments.size(), 9U);
  // Its result is the input of the projection, which is kept, and it saves nothing else here.
  EXPECT_EQ(plan.actions, plan_none(graph).actions);
  synthetic::GraphBuilder g;
  const ValueId x = g.leaf();
  const ValueId scores = g.op("aten::bmm", {x}, 4_MiB), weights = g.op("aten::_softmax", {scores}, 4_MiB);
  const ValueId out = g.op("aten::bmm", {weights, x}, 1_MiB), y = g.op("aten::mm", {out}, 1_MiB);
  for (ValueId v : {weights, out}) g.save(v);
  for (ValueId v : {scores, weights, out, y}) g.die(v);
  g.settle();
  g.node({out}, 0);
  g.node({weights}, 0);
  const MemoryPlan unfused = plan_core_attention(g.graph());
  EXPECT_THAT(unfused.segments, ElementsAre(SegmentRange{0, 3}));
  EXPECT_FALSE(unfused.keeps(weights));
  EXPECT_TRUE(unfused.keeps(out));
  EXPECT_EQ(simulate(g.graph(), unfused).replayed_ops, 2);
  EXPECT_THAT(testing::fault([&] { return plan_core_attention(synthetic::random_graph(1, 5)); }),
              HasSubstr("no attention"));
}

TEST(PlanCoreAttention, ReachesOverScalesAndDropoutBetweenTheProducts) {
  synthetic::GraphBuilder g;
  const ValueId x = g.leaf(), q = g.op("aten::mm", {x}, 1_MiB), raw = g.op("aten::bmm", {q}, 4_MiB),
                scaled = g.op("aten::div", {raw}, 4_MiB), scores = g.op("aten::add", {scaled, x}, 4_MiB),
                weights = g.op("aten::_softmax", {scores}, 4_MiB),
                dropped = g.op("aten::native_dropout", {weights}, 4_MiB), out = g.op("aten::bmm", {dropped, q}, 1_MiB);
  for (ValueId v : {weights, dropped, out}) g.save(v);
  g.settle();
  EXPECT_THAT(plan_core_attention(g.graph()).segments, ElementsAre(SegmentRange{1, 7}));
}

TEST(PlanRevolve, TakesTheStepsOfTheClosedForm) {
  // Griewank and Walther 2000: t(l, s) = r l - C(s + r, r - 1) with the smallest r such that C(s + r, s) >= l.
  const auto choose = [](int n, int k) {
    double c = 1;
    for (int i = 1; i <= k; ++i) c = c * (n - k + i) / i;
    return static_cast<std::int64_t>(std::llround(c));
  };
  for (int steps = 2; steps <= 30; ++steps) {
    const StepGraph graph = synthetic::uniform_chain(steps);
    for (int s = 1; s <= steps; ++s) {
      int r = 0;
      while (choose(s + r, s) < steps) ++r;
      const std::int64_t forwards = r * steps - choose(s + r, r - 1);
      // The first of them is the step's own forward pass, up to the input of the last operator.
      EXPECT_EQ(simulate(graph, plan_revolve(graph, s)).replayed_ops, forwards - (steps - 1)) << steps << " " << s;
    }
  }
}

TEST(AllPresets, MakesOnlyWhatSuitsTheStep) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const auto plans = all_presets(graph);
  EXPECT_EQ(plans.front().strategy, "none");
  // none, every_block, chen_sqrt, core_attention and four with 9 arguments each
  EXPECT_EQ(plans.size(), 4U + 4 * 9);
  synthetic::GraphBuilder flat;
  flat.op("a", {flat.leaf()}, 100);
  EXPECT_EQ(all_presets(flat.graph()).size(), 1U);
}

TEST(AllPresets, HaveEachOfFewCheckpointsForManyBlocks) {
  std::vector<std::string> names;
  for (const MemoryPlan& plan : all_presets(synthetic::gpt_like({.blocks = 90}))) names.push_back(plan.strategy);
  for (const char* name : {"revolve(2)", "revolve(3)", "revolve(4)", "revolve(12)", "revolve(89)"}) {
    EXPECT_THAT(names, ::testing::Contains(name));
  }
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("revolve(1)")));  // 45 forward passes
  EXPECT_THAT(names, ::testing::Not(::testing::Contains("revolve(14)")));
}

TEST(PlanSegments, WithoutRangesKeepsEverything) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  EXPECT_EQ(plan_segments(graph, {}).actions, plan_none(graph).actions);
  EXPECT_EQ(plan_segments(graph, {}).predicted_peak, plan_none(graph).predicted_peak);
}

TEST(Presets, TradeTimeForMemory) {
  const StepGraph graph = synthetic::gpt_like(kChain);
  const MemoryPlan none = plan_none(graph);
  for (const MemoryPlan& plan : {plan_every_block(graph), plan_chen_sqrt(graph)}) {
    EXPECT_LT(plan.predicted_peak, none.predicted_peak) << plan.strategy;
    EXPECT_GT(plan.predicted_seconds, none.predicted_seconds) << plan.strategy;
  }
}

}  // namespace
}  // namespace snug::plan
