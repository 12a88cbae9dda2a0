// Megatron-Core's schemes that name modules.
#include "snug/plan/run/module_presets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "snug/plan/planner.h"
#include "snug/plan/run/explanation.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/module_calls.h"
#include "tests/base/fault.h"
#include "tests/plan/synthetic_graph.h"

namespace snug::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two blocks: a norm, whose result a linear layer saves, that, and an activation that saves its input and is saved by
/// the linear layer behind.
struct Blocks {
  Blocks() {
    synthetic::GraphBuilder g(0);
    ValueId x = g.op("embedding", {g.leaf()}, 100, 1);
    std::vector<ValueId> saved;
    for (int block = 0; block < 2; ++block) {
      const std::string path = "blocks." + std::to_string(block);
      const auto add = [&](const char* name, const char* module, ValueId input, Bytes bytes, bool saves = true) {
        if (saves) g.save(input);  // in front of the operator, as autograd does
        const ValueId made = g.op(name, {input}, bytes, 1);
        paths.push_back(path + module);
        return made;
      };
      const ValueId normed = add("norm", ".norm", x, 100);
      const ValueId up = add("up", ".mlp", normed, 400);
      const ValueId activated = add("gelu", ".mlp.act", up, 400);
      const ValueId down = add("down", ".mlp", activated, 100);
      const ValueId sum = add("add", "", down, 100, /*saves=*/false);
      saved.insert(saved.end(), {x, normed, up, activated});
      for (const ValueId v : {x, normed, up, activated, down}) g.die(v);
      for (const auto& [name, value] : {std::pair("normed", normed), std::pair("up", up), std::pair("act", activated),
                                        std::pair("down", down), std::pair("sum", sum)})
        values[path + " " + name] = value;
      x = sum;
    }
    g.settle();
    for (auto v = saved.rbegin(); v != saved.rend(); ++v) g.node({*v}, 10);
    graph = g.take();
    for (std::size_t i = 0; i < paths.size(); ++i) graph.ops[i + 1].module = paths[i];
  }
  [[nodiscard]] Action action(const MemoryPlan& plan, const std::string& value) const {
    return plan.action(values.at(value));
  }
  StepGraph graph;
  std::vector<std::string> paths;
  std::map<std::string, ValueId> values;
};

MemoryPlan planned(const StepGraph& graph, const char* strategy) { return make_plan(graph, strategy, std::nullopt); }

TEST(ModuleCalls, AreOperatorsInARowInOneModule) {
  const Blocks blocks;
  const auto calls = [&](std::vector<std::string> names) { return calls_of_modules(blocks.graph, names); };
  EXPECT_THAT(calls({"mlp"}), ElementsAre(SegmentRange{2, 5}, SegmentRange{7, 10}));
  EXPECT_THAT(calls({"act"}), ElementsAre(SegmentRange{3, 4}, SegmentRange{8, 9}));
  EXPECT_THAT(calls({"mlp.act"}), ElementsAre(SegmentRange{3, 4}, SegmentRange{8, 9}));
  EXPECT_THAT(calls({"act", "mlp"}), ElementsAre(SegmentRange{2, 5}, SegmentRange{7, 10})) << "the outermost";
  EXPECT_THAT(calls({"blocks.1.norm"}), ElementsAre(SegmentRange{6, 7}));
  EXPECT_THAT(calls({"blocks.[01]"}), ElementsAre(SegmentRange{1, 6}, SegmentRange{6, 11}));
  EXPECT_THAT(calls({"norm", "act"}),
              ElementsAre(SegmentRange{1, 2}, SegmentRange{3, 4}, SegmentRange{6, 7}, SegmentRange{8, 9}));
}

TEST(ModulePresets, MakeAgainWhatAModuleMakesInside) {
  const Blocks blocks;
  const MemoryPlan plan = planned(blocks.graph, "recompute_modules(mlp)");
  for (const char* block : {"blocks.0", "blocks.1"}) {
    const auto action = [&](const char* value) { return blocks.action(plan, std::string(block) + " " + value); };
    EXPECT_EQ(action("normed"), kKeep);
    EXPECT_EQ(action("up"), kRecompute);
    EXPECT_EQ(action("act"), kRecompute);
    EXPECT_EQ(action("down"), kRecompute) << "it leaves, and nobody saves it";
  }
  const Simulation run = simulate(blocks.graph, plan), none = simulate(blocks.graph, plan_none(blocks.graph));
  EXPECT_EQ(run.replayed_ops, 4) << "up and its activation, in each block";
  EXPECT_EQ(none.after_forward - run.after_forward, 2 * 800);
  EXPECT_EQ(plan.strategy, "recompute_modules(mlp)");
  EXPECT_EQ(plan.predicted_peak, run.peak);
}

TEST(ModulePresets, DropAnOutputThatItsConsumerSaved) {
  const Blocks blocks;
  const MemoryPlan inside = planned(blocks.graph, "recompute_modules(norm, act)");
  EXPECT_EQ(simulate(blocks.graph, inside).after_forward, simulate(blocks.graph, plan_none(blocks.graph)).after_forward)
      << "others save what they make";
  const MemoryPlan plan = planned(blocks.graph, "recompute_outputs(norm, act)");
  const Simulation run = simulate(blocks.graph, plan);
  EXPECT_EQ(simulate(blocks.graph, inside).after_forward - run.after_forward, 2 * (100 + 400));
  EXPECT_EQ(run.replayed_ops, 4) << "each of them once";
  EXPECT_EQ(blocks.action(plan, "blocks.0 up"), kKeep) << "what they are made of";
}

TEST(ModulePresets, MoveWhatIsSavedInAModuleAndItsInput) {
  Blocks blocks;
  blocks.graph.moves.host = MoveCost{.out_seconds_per_byte = 1e-9, .in_seconds_per_byte = 1e-9, .budget = {}};
  const MemoryPlan plan = planned(blocks.graph, "offload_modules(mlp)");
  for (const char* value : {"normed", "up", "act"})
    EXPECT_EQ(blocks.action(plan, std::string("blocks.1 ") + value), kMove);
  EXPECT_EQ(blocks.action(plan, "blocks.0 sum"), kKeep) << "the norm saves it";
  EXPECT_EQ(plan.staging.leaving, 2 * 400);
  EXPECT_EQ(explain(blocks.graph, plan).all.moved, 2 * 900);
  EXPECT_EQ(simulate(blocks.graph, plan).replayed_ops, 0);
}

TEST(ModulePresets, SayWhatThereIs) {
  Blocks blocks;
  const auto mistake = [&](const char* strategy) { return testing::fault([&] { planned(blocks.graph, strategy); }); };
  EXPECT_EQ(mistake("recompute_modules(mpl)"),
            "plan: no operator ran in a module \"mpl\"; did you mean \"mlp\"? there are act, blocks, mlp, norm");
  EXPECT_THAT(mistake("recompute_outputs(norm, attention)"), HasSubstr("no operator ran in a module \"attention\""));
  EXPECT_THAT(mistake("offload_modules(mlp)"), HasSubstr("give a host budget or a disk budget"));
  EXPECT_EQ(mistake("recompute_modules()"),
            "strategy: recompute_modules needs its arguments: recompute_modules(NAME,...)");
  for (OpInfo& op : blocks.graph.ops) op.module.clear();
  EXPECT_THAT(mistake("recompute_modules(mlp)"), HasSubstr("modules have no names here"));
}

}  // namespace
}  // namespace snug::plan
