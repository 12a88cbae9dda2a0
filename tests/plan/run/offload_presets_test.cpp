#include "snug/plan/run/offload_presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "snug/plan/planner.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/pieces.h"
#include "tests/base/fault.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using ::testing::HasSubstr;

constexpr int kOffloadBlocks = 5;

StepGraph graph_moving(const Moves& moves) {
  StepGraph graph = synthetic::gpt_like({.blocks = kOffloadBlocks});
  graph.moves = moves;
  return graph;
}
MoveCost beside() {
  return {.out_seconds_per_byte = 1e-9, .in_seconds_per_byte = 1e-9, .overlaps = true, .budget = std::nullopt};
}

std::ptrdiff_t moved(const MemoryPlan& plan) { return std::ranges::count_if(plan.actions, is_moved); }

TEST(OffloadPresets, MoveAllThatIsSavedInFrontOfTheOutputHead) {
  const StepGraph graph = graph_moving({.host = beside(), .disk = {}});
  const MemoryPlan plan = make_plan(graph, "offload(1KiB)", std::nullopt);
  const OpId head = repeated_blocks(graph).back().end;
  Bytes largest = 0;
  for (ValueId v = 0; v < graph.flow.values(); ++v) {
    const bool saved = graph.values[at(v)].saved && !graph.flow.is_leaf(v);
    const bool goes = saved && graph.flow.producer(v) < head && graph.step_bytes(v) >= 1_KiB;
    EXPECT_EQ(plan.action(v) == kMove, goes) << v;
    if (goes) largest = std::max(largest, graph.step_bytes(v));
  }
  EXPECT_EQ(plan.staging.leaving, 5 * largest);
  EXPECT_EQ(simulate(graph, plan).replayed_ops, 0);
  EXPECT_LT(plan.predicted_peak, plan_none(graph).predicted_peak);
  EXPECT_EQ(plan.predicted_peak, simulate(graph, plan).peak);
  EXPECT_EQ(moved(plan_offload(graph, largest + 1)), 0);
  EXPECT_EQ(plan_offload(graph, 1024).strategy, "offload(1024)");
}

TEST(OffloadPresets, MoveWhatCheckpointedBlocksBeginWithButTheLast) {
  const StepGraph graph = graph_moving({.host = beside(), .disk = {}});
  const MemoryPlan every = plan_every_block(graph);
  for (const int kept : {0, 1, 2, kOffloadBlocks}) {
    const MemoryPlan plan = make_plan(graph, "offloaded_blocks(" + std::to_string(kept) + ")", std::nullopt);
    EXPECT_EQ(moved(plan), kOffloadBlocks - kept);  // DeepSpeed's test: as many are restored as are not kept
    EXPECT_EQ(plan.segments, every.segments);
    EXPECT_EQ(simulate(graph, plan).replayed_ops, simulate(graph, every).replayed_ops);
    for (ValueId v = 0; v < graph.flow.values(); ++v)
      EXPECT_TRUE(is_moved(plan.action(v)) ? every.keeps(v) : plan.action(v) == every.action(v)) << v;
  }
  EXPECT_LT(simulate(graph, plan_offloaded_blocks(graph, 1)).after_forward, simulate(graph, every).after_forward);
  EXPECT_THAT(testing::fault([&] { plan_offloaded_blocks(graph, kOffloadBlocks + 1); }), HasSubstr("from 0 to 5"));
}

TEST(OffloadPresets, GoToTheDiskWhereTheHostHasNoBudgetOrNoRoom) {
  const StepGraph disk = graph_moving({.host = {}, .disk = beside()});
  const MemoryPlan all = plan_offload(disk, 1);
  EXPECT_GT(std::ranges::count(all.actions, kMoveToDisk), kOffloadBlocks);
  EXPECT_EQ(std::ranges::count(all.actions, kMove), 0);
  Moves moves{.host = beside(), .disk = beside()};
  const Bytes half = moves.host->budget.emplace(simulate(disk, all).disk_peak / 2);
  const StepGraph both = graph_moving(moves);
  const Simulation run = simulate(both, plan_offload(both, 1));
  EXPECT_GT(run.host_peak, 0);
  EXPECT_LE(run.host_peak, half);
  EXPECT_GT(run.disk_peak, 0);
}

TEST(OffloadPresets, SayWhatIsMissing) {
  EXPECT_THAT(testing::fault([] { plan_offload(graph_moving({}), 1); }),
              HasSubstr("give a host budget or a disk budget"));
  Moves moves{.host = beside(), .disk = {}};
  moves.host->budget = 8_KiB;
  EXPECT_THAT(testing::fault([&] { plan_offload(graph_moving(moves), 1); }),
              HasSubstr("at once, and the host budget is 8.0 KiB"));
  EXPECT_THAT(testing::fault([&] { plan_offloaded_blocks(graph_moving(moves), -1); }), HasSubstr("from 0 to 5"));
}

}  // namespace
}  // namespace snug::plan
