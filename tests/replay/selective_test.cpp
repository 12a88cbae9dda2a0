// Policies that say what is kept, by operator, by module, and by a function.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "snug/base/module_scope.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"

namespace snug {
namespace {

using testing::same_bits;

class SelectiveRegion : public ::testing::Test {
 protected:
  SelectiveRegion() { torch::manual_seed(3); }

  /// Two products, each with a sine before it: backward needs what both sines and the first product make.
  at::Tensor forward() const {
    at::Tensor y;
    {
      const ModuleScope scope("first");
      y = x.sin().mm(w);
    }
    const ModuleScope scope("second");
    return y.sin().mm(w).square();
  }

  struct Run {
    at::Tensor gradient;
    std::int64_t replayed;
  };
  Run run(RegionAction action) const {
    const Region region(std::move(action));
    const at::Tensor y = forward();
    const at::Tensor gradient = torch::autograd::grad({y.sum()}, {w})[0];
    return {gradient, region.replayed_ops()};
  }

  const at::Tensor x = torch::randn({16, 16}), w = torch::randn({16, 16}, at::requires_grad());
  const at::Tensor plain = torch::autograd::grad({forward().sum()}, {w})[0];
};

TEST_F(SelectiveRegion, KeepsResultsOfNamedOperators) {
  const Run all = run(Recompute{});
  EXPECT_TRUE(same_bits(plain, all.gradient));
  EXPECT_EQ(all.replayed, 4);
  const Run kept = run(Selective{.keep = {"aten::mm"}});
  EXPECT_TRUE(same_bits(plain, kept.gradient));
  EXPECT_EQ(kept.replayed, 2);  // the sines
}

TEST_F(SelectiveRegion, KeepsResultsOfNamedModules) {
  const Run kept = run(Selective{.keep_modules = {"first"}});
  EXPECT_TRUE(same_bits(plain, kept.gradient));
  EXPECT_EQ(kept.replayed, 2);  // of the second module
}

TEST_F(SelectiveRegion, AsksAPolicyOnceForEveryOperatorAndOnlyInForward) {
  std::map<std::string, std::vector<std::int64_t>> asked;
  const SelectivePolicy policy = [&](const OperatorContext& context) {
    asked[std::string(context.name)].push_back(context.invocation);
    return context.name == "aten::mm" && context.invocation == 0 ? Choice::PreferKeep : Choice::PreferRecompute;
  };
  const Run kept = run(policy);
  EXPECT_TRUE(same_bits(plain, kept.gradient));
  EXPECT_EQ(kept.replayed, 3);
  EXPECT_EQ(asked["aten::mm"], (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(asked["aten::sin"], (std::vector<std::int64_t>{0, 1}));
}

TEST_F(SelectiveRegion, InnermostWins) {
  const Region outer(Selective{.keep = {"aten::mm"}});
  at::Tensor y;
  {
    const Region inner(Recompute{});
    y = forward();
  }
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {w})[0]));
  EXPECT_EQ(outer.replayed_ops(), 4);
}

TEST_F(SelectiveRegion, IsAnOptionOfACheckpoint) {
  const CheckpointOptions options{.mode = Replay{.region = Selective{.keep = {"aten::mm"}}}};
  const at::Tensor y = checkpoint(options, [this] { return forward(); });
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {w})[0]));
}

TEST_F(SelectiveRegion, BindsThePlanOfASession) {
  auto& memory = testing::test_memory();
  const auto replays_of = [&](const RegionAction& action, std::string_view strategy) {
    w.mutable_grad() = at::Tensor();
    const auto step = [&] {
      const Region region(action);
      return forward().sum();
    };
    Session session(replay::record_step(step, memory), strategy, std::nullopt, memory);
    session.backward(step);
    EXPECT_TRUE(session.last_step().followed_plan);
    EXPECT_TRUE(same_bits(plain, w.grad()));
    return session.last_step().replayed_ops;
  };
  const auto must = [](Choice choice) {
    return SelectivePolicy(
        [choice](const OperatorContext& context) { return context.name == "aten::sin" ? choice : Choice::PreferKeep; });
  };
  // Nothing has to go, and yet the sines do.
  EXPECT_EQ(replays_of(Recompute{}, "none"), 0);
  EXPECT_EQ(replays_of(must(Choice::MustRecompute), "none"), 2);
  EXPECT_EQ(replays_of(must(Choice::PreferRecompute), "none"), 0);
}

TEST_F(SelectiveRegion, IsInTheStepGraph) {
  const auto step = [&] {
    const Region region(Selective{.keep = {"aten::mm"}});
    return forward().sum();
  };
  const auto graph = replay::record_step(step, testing::test_memory()).graph;
  std::int64_t kept = 0;
  for (const plan::ValueInfo& value : graph.values) kept += value.must == plan::Must::Keep;
  EXPECT_EQ(kept, 2);
  EXPECT_EQ(plan::step_graph_from_json(plan::to_json(graph)), graph);
}

TEST(ModuleScope, MakesAPath) {
  EXPECT_EQ(current_module(), "");
  const ModuleScope outer("blocks.3");
  {
    const ModuleScope inner("mlp");
    EXPECT_EQ(current_module(), "blocks.3.mlp");
  }
  EXPECT_EQ(current_module(), "blocks.3");
  EXPECT_TRUE(is_in_module("blocks.3.mlp", "blocks"));
  EXPECT_TRUE(is_in_module("blocks.3.mlp", "3.mlp"));
  EXPECT_FALSE(is_in_module("blocks.3.mlp", "ml"));
  EXPECT_FALSE(is_in_module("blocks.31.mlp", "3"));
}

}  // namespace
}  // namespace snug
