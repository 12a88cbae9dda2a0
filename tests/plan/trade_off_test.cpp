#include "snug/plan/trade_off.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "snug/plan/bound/lower_bound.h"
#include "snug/plan/does_not_fit.h"
#include "snug/plan/planner.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/search/chain.h"
#include "snug/plan/search/chain_program.h"
#include "snug/plan/search/front.h"
#include "snug/plan/search/price_search.h"
#include "tests/plan/random_graph.h"

namespace snug::plan {
namespace {

constexpr Bytes kReserve = 12345;

DoesNotFit::Floor floor_under(const TradeOff& trade_off, const StepGraph& graph, Budget budget) {
  try {
    (void)trade_off.best(graph, budget);
  } catch (const DoesNotFit& error) {
    return error.floor();
  }
  ADD_FAILURE() << "it fits";
  return {};
}

class TradeOffOfAChain : public ::testing::Test {
 protected:
  const StepGraph graph = synthetic::gpt_like({.blocks = 8});
  const MemoryPlan none = plan_none(graph);
  const TradeOff trade_off{graph};
};

TEST_F(TradeOffOfAChain, KeepsEverythingWhenItFits) {
  const MemoryPlan plan = trade_off.best(graph, {none.predicted_peak + kReserve, kReserve});
  EXPECT_EQ(plan.strategy, "optimal");
  EXPECT_EQ(plan.budget, none.predicted_peak + kReserve);
  EXPECT_EQ(plan.predicted_seconds, graph.step_seconds);
}

TEST_F(TradeOffOfAChain, GoesElsewhereAsAText) {
  StepGraph moving = graph;
  moving.moves.host = MoveCost{.out_seconds_per_byte = 1e-10,
                               .in_seconds_per_byte = 1e-10,
                               .seconds_per_copy = 1e-6,
                               .budget = {},
                               .in_slabs = false};
  for (const StepGraph& one : {graph, moving}) {
    const TradeOff found(one), read = TradeOff::from_json(nlohmann::json::parse(found.to_json().dump()));
    EXPECT_EQ(found, read);
    const Planner here(one, "optimal"), there(one, read);
    const Budget budget{(here.floor(one) + plan_none(one).predicted_peak) / 2, 0};
    EXPECT_EQ(here.plan(one, budget), there.plan(one, budget));
    EXPECT_EQ(here.strategy(), there.strategy());
  }
  EXPECT_THROW((void)TradeOff::from_json(nlohmann::json::parse("{}")), Error);
  EXPECT_THROW((void)TradeOff::from_json(nlohmann::json::parse(R"({"plans": []})")), Error);
}

TEST_F(TradeOffOfAChain, FitsEveryBudgetDownToTheFloorAndPredictsWhatTheSimulatorSays) {
  EXPECT_LT(trade_off.floor(), none.predicted_peak / 3);
  for (Bytes budget = trade_off.floor(); budget <= none.predicted_peak; budget += 1_MiB) {
    SCOPED_TRACE(budget);
    const MemoryPlan plan = trade_off.best(graph, {budget + kReserve, kReserve});
    EXPECT_LE(plan.predicted_peak, budget);
    const Simulation run = simulate(graph, plan);
    EXPECT_EQ(run.peak, plan.predicted_peak);
    EXPECT_EQ(run.seconds, plan.predicted_seconds);
  }
}

TEST_F(TradeOffOfAChain, NamesAFloorThatWorksAndNothingBelowIt) {
  const auto floor = floor_under(trade_off, graph, {1_MiB, kReserve});
  EXPECT_EQ(floor.budget, 1_MiB);
  EXPECT_EQ(floor.floor, trade_off.floor() + kReserve);
  EXPECT_EQ(floor.static_by_tag, graph.static_by_tag);
  EXPECT_EQ(floor.step_bytes, floor.floor - kReserve - graph.static_bytes);
  EXPECT_EQ(floor.strategy, "optimal");
  EXPECT_LE(trade_off.best(graph, {floor.floor, kReserve}).predicted_peak, floor.floor - kReserve);
  EXPECT_EQ(floor_under(trade_off, graph, {floor.floor - 1, kReserve}).floor, floor.floor);
}

TEST_F(TradeOffOfAChain, NamesAFloorThatWorksUnderAnAllocatorsLimit) {
  // The reserve grows with the limit, so the floor is not the peak and the reserve of the budget that was too small.
  for (const Bytes width : {16_KiB, 300_KiB, 1_MiB, 8_MiB}) {
    SCOPED_TRACE(width);
    const StepGraph other = synthetic::gpt_like({.blocks = 8, .width = width, .static_bytes = 0});
    const TradeOff plans(other);
    const auto floor = floor_under(plans, other, Budget::for_limit(100_KiB));
    EXPECT_NO_THROW((void)plans.best(other, Budget::for_limit(floor.floor)));
    EXPECT_THROW((void)plans.best(other, Budget::for_limit(floor.floor - 1)), DoesNotFit);
  }
}

TEST_F(TradeOffOfAChain, IsCloseToTheBoundAndToTheLeastPossiblePeak) {
  EXPECT_EQ(lower_bound_of_peak(graph), graph.static_bytes + 9_MiB);  // gelu: its input, its output and a MiB
  EXPECT_LE(trade_off.floor(), lower_bound_of_peak(graph) + 4_MiB);
  const Bytes half = graph.static_bytes + (none.predicted_peak - graph.static_bytes) / 2;
  const double seconds = trade_off.best(graph, {half, 0}).predicted_seconds;
  const double bound = lower_bound(graph, half).step_seconds;
  EXPECT_GT(bound, graph.step_seconds);
  EXPECT_LT(optimality_gap(seconds, bound, graph.step_seconds), 0.15);
}

TEST_F(TradeOffOfAChain, ReplansForOtherStaticBytes) {
  StepGraph later = graph;
  later.static_bytes += 5_MiB;
  const Budget budget{trade_off.floor() + 30_MiB, 0};
  const MemoryPlan plan = trade_off.best(later, budget);
  EXPECT_EQ(plan.predicted_peak, simulate(later, plan).peak);
  EXPECT_EQ(plan.actions, trade_off.best(graph, {budget.limit - 5_MiB, 0}).actions);
  EXPECT_EQ(floor_under(trade_off, later, {1_MiB, 0}).floor, trade_off.floor() + 5_MiB);
}

/// Shapes that are no plain chain.
StepGraph u_net(int depth) {
  synthetic::GraphBuilder b(4_MiB);
  std::vector<std::vector<ValueId>> saved;
  const ValueId weight = b.leaf();
  const auto run = [&](const char* name, const std::vector<ValueId>& inputs, Bytes bytes, double seconds) {
    const ValueId out = b.op(name, inputs, bytes, seconds);
    saved.push_back(inputs);
    for (ValueId v : inputs) b.save(v);
    return out;
  };
  Bytes size = 16_MiB;
  ValueId x = run("conv", {weight}, size, 4);
  std::vector<ValueId> skips;
  for (int i = 0; i < depth; ++i) {
    const ValueId y = run("relu", {x}, size, 0.2);
    b.die(x);
    skips.push_back(y);
    size /= 4;
    x = run("conv", {y, weight}, size, 3);
  }
  for (int i = depth - 1; i >= 0; --i) {
    size *= 4;
    const ValueId up = run("up", {x}, size, 0.5);
    b.die(x);
    const ValueId joined = run("cat", {up, skips[static_cast<std::size_t>(i)]}, 2 * size, 0.3);
    b.die(up);
    b.die(skips[static_cast<std::size_t>(i)]);
    x = run("conv", {joined, weight}, size, 6);
    b.die(joined);
  }
  const ValueId loss = run("loss", {x}, 4_KiB, 0.1);
  b.die(x);
  b.die(loss);
  b.settle();
  for (auto values = saved.rbegin(); values != saved.rend(); ++values) b.node(*values, 1_MiB);
  return b.take();
}

TEST(TradeOff, IsMonotoneAndNeverWorseThanAPreset) {
  std::vector<StepGraph> graphs{synthetic::gpt_like({.blocks = 12}), u_net(4), synthetic::uniform_chain(20)};
  for (std::uint64_t seed = 0; seed < 8; ++seed) graphs.push_back(synthetic::random_graph(seed, 60));
  for (const StepGraph& graph : graphs) {
    const TradeOff trade_off(graph);
    const auto& plans = trade_off.plans();
    for (std::size_t i = 1; i < plans.size(); ++i) {
      ASSERT_LT(plans[i].predicted_peak, plans[i - 1].predicted_peak);
      ASSERT_GT(plans[i].predicted_seconds, plans[i - 1].predicted_seconds);
    }
    const Bytes most = plan_none(graph).predicted_peak;
    Bytes peak = most;
    double seconds = 0;
    for (int i = 0; i <= 30; ++i) {
      const Bytes budget = most - (most - trade_off.floor()) * i / 30;
      const MemoryPlan plan = trade_off.best(graph, {budget, 0});
      ASSERT_LE(plan.predicted_peak, std::min(peak, budget));
      ASSERT_GE(plan.predicted_seconds, seconds);
      ASSERT_GE(plan.predicted_seconds, lower_bound(graph, budget).step_seconds * (1 - 1e-12));
      peak = plan.predicted_peak;
      seconds = plan.predicted_seconds;
    }
    ASSERT_GE(trade_off.floor(), lower_bound_of_peak(graph));
    for (const MemoryPlan& preset : all_presets(graph)) {
      ASSERT_LE(trade_off.best(graph, {preset.predicted_peak, 0}).predicted_seconds, preset.predicted_seconds)
          << preset.strategy;
    }
  }
}

TEST(TradeOff, FreesTheSkipsOfAUNet) {
  const StepGraph graph = u_net(4);
  const TradeOff trade_off(graph);
  EXPECT_LT(trade_off.floor(), plan_none(graph).predicted_peak * 2 / 3);
}

TEST(TradeOff, TakesTheStepsOfRevolvesClosedFormOnAUniformChain) {
  const auto choose = [](int n, int k) {
    double c = 1;
    for (int i = 1; i <= k; ++i) c = c * (n - k + i) / i;
    return std::llround(c);
  };
  for (int steps = 2; steps <= 40; ++steps) {
    const StepGraph graph = synthetic::uniform_chain(steps);
    const TradeOff trade_off(graph);
    for (int s = 1; s <= std::min(steps, 8); ++s) {
      int r = 0;
      while (choose(s + r, s) < steps) ++r;
      const auto forwards = static_cast<double>(r * steps - choose(s + r, r - 1));
      const MemoryPlan plan = trade_off.best(graph, {synthetic::uniform_chain_peak(s), 0});
      ASSERT_EQ(plan.predicted_seconds - graph.step_seconds, forwards - (steps - 1)) << steps << " steps, " << s;
    }
  }
}

TEST(ChainPlans, AreRevolvesOnAUniformChainWithoutAnyHelp) {
  const StepGraph graph = synthetic::uniform_chain(30);
  std::vector<MemoryPlan> plans;
  for (MemoryPlan& plan :
       chain_plans(graph, make_chain(graph, 48), lower_bound_of_peak(graph), plan_none(graph).predicted_peak)) {
    plans.push_back(predicted(graph, std::move(plan)));
  }
  plans = front_of(std::move(plans));
  for (int s = 1; s <= 8; ++s) {
    const auto fits = std::ranges::find_if(
        plans, [&](const MemoryPlan& p) { return p.predicted_peak <= synthetic::uniform_chain_peak(s); });
    ASSERT_NE(fits, plans.end()) << s;
    EXPECT_EQ(fits->predicted_seconds, plan_revolve(graph, s).predicted_seconds) << s;
  }
}

TEST(ChainPlans, KeepToTheirBudgetsInNestedReplays) {
  // A replay of many pieces leaves all that backward waits for, except inside segments: what a plan keeps by value is
  // no measure for it.
  for (const StepGraph& graph : {synthetic::deep_net({.blocks = 30}), synthetic::gpt_like({.blocks = 24})}) {
    const Chain chain = make_chain(graph, 48);
    const Bytes least = lower_bound_of_peak(graph), most = plan_none(graph).predicted_peak;
    int nested = 0;
    for (int i = 1; i < 40; ++i) {
      // The first plan is for the largest budget, exactly.
      const Bytes budget = least + (most - least) * i / 80;
      const auto plans = chain_plans(graph, chain, least, budget);
      if (plans.empty()) continue;
      ++nested;
      EXPECT_LE(simulate(graph, plans.front()).peak, budget + budget / 100) << "of " << budget;
    }
    EXPECT_GT(nested, 30);
  }
}

TEST(ChainPlans, WeighPiecesByTheirOwnValuesAlone) {
  // While an operator ran, another thread freed what it had, or took some: the step's level moves, no piece's does.
  for (const Bytes freed : {40_MiB, -40_MiB}) {
    StepGraph graph = synthetic::gpt_like({.blocks = 8, .static_bytes = 100_MiB});
    graph.ops[35].other_bytes = -freed;
    StepGraph apart = graph;
    apart.ops[35].other_bytes = 0;
    const auto run =
        std::ranges::find_if(apart.events, [](const Event& e) { return e.kind == Event::Kind::Run && e.id == 35; });
    apart.events.insert(run + 1, {Event::Kind::Other, -1, 0, -freed});
    EXPECT_EQ(plan_none(graph).predicted_peak, plan_none(apart).predicted_peak);
    const Chain chain = make_chain(graph, 48), expected = make_chain(apart, 48);
    ASSERT_EQ(chain.pieces.size(), expected.pieces.size());
    const auto same = [](const std::vector<PieceOption>& a, const std::vector<PieceOption>& b) {
      return std::ranges::equal(a, b, [](const PieceOption& x, const PieceOption& y) {
        return x.kept == y.kept && x.forward_need == y.forward_need && x.backward_need == y.backward_need &&
               x.forward_bytes == y.forward_bytes;
      });
    };
    for (std::size_t p = 0; p < chain.pieces.size(); ++p) {
      const auto& [ours, theirs] = std::pair(chain.pieces[p], expected.pieces[p]);
      EXPECT_TRUE(same(ours.options, theirs.options)) << p;
      EXPECT_TRUE(same(ours.in_replay, theirs.in_replay)) << p;
      for (const PieceOption& option : ours.in_replay) EXPECT_GE(option.kept, 0) << p;
    }
    const Bytes least = lower_bound_of_peak(graph), most = plan_none(graph).predicted_peak;
    const auto plans = chain_plans(graph, chain, least, least + (most - least) / 2);
    ASSERT_FALSE(plans.empty());
    EXPECT_LE(simulate(graph, plans.front()).peak, least + (most - least) / 2);
  }
}

TEST(ChainPlans, HaveAtMostSoManyBudgets) {
  const StepGraph graph = synthetic::deep_net({.blocks = 12});
  const Chain chain = make_chain(graph, 48);
  const Bytes least = lower_bound_of_peak(graph), most = plan_none(graph).predicted_peak;
  EXPECT_LE(chain_plans(graph, chain, least, most, 200).size(), 201U);
  EXPECT_GT(chain_plans(graph, chain, least, most).size(), 400U);
}

TEST(PlansPerStage, AreFewerForLargerSteps) {
  for (const int blocks : {10, 200, 2000}) {
    const StepGraph graph = synthetic::gpt_like({.blocks = blocks});
    const std::size_t most = plans_per_stage(graph);
    EXPECT_EQ(most, blocks == 2000 ? 399U : 2048U);
    const Bytes peak = plan_none(graph).predicted_peak;
    const auto of_chain = chain_plans(graph, make_chain(graph, 48), lower_bound_of_peak(graph), peak).size();
    const auto priced = priced_plans(graph).size();
    EXPECT_LE(of_chain, most + 1);
    EXPECT_LE(priced, most);
    // And are tried: about half are made by no other budget.
    EXPECT_GT(of_chain, most / 8);
    EXPECT_GT(priced, most / 8);
  }
}

/// The fewest checkpoints that reverse so many steps within `forwards` forward passes (Griewank 1992).
int fewest_checkpoints(int steps, int forwards) {
  int s = 0;
  double reach = 1;  // C(s + r, s)
  while (reach < steps) {
    ++s;
    reach = reach * (s + forwards) / s;
  }
  return s;
}

TEST(TradeOff, HasFloorsOfDeepStepsThatFollowRevolvesClosedForm) {
  // In forward passes that searches look at (most_replays), one block by itself and a few block inputs suffice.
  constexpr Bytes kWidth = 2_MiB;
  const StepGraph one = synthetic::deep_net({.blocks = 1, .width = kWidth});
  const Bytes block = Planner(one, "optimal", {.simulated_ops = 0}).floor(one) - one.static_bytes;
  for (const int blocks : {8, 30, 60}) {
    SCOPED_TRACE(blocks);
    const StepGraph graph = synthetic::deep_net({.blocks = blocks, .width = kWidth});
    const Bytes floor = Planner(graph, "optimal", {.simulated_ops = 0}).floor(graph) - graph.static_bytes;
    EXPECT_LT(static_cast<double>(floor), 1.1 * static_cast<double>(block + fewest_checkpoints(blocks, 12) * kWidth));
    EXPECT_GE(floor, lower_bound_of_peak(graph) - graph.static_bytes);
  }
}

TEST(TradeOff, HasTheSameFloorOfADeepStepWhateverItsSeconds) {
  StepGraph graph = synthetic::deep_net({.blocks = 24});
  EXPECT_GT(graph.flow.ops(), 1000);
  const Bytes floor = TradeOff(graph).floor();
  synthetic::Dice dice(5);
  for (OpInfo& op : graph.ops) op.seconds *= 0.2 + 0.1 * dice.roll(40);
  EXPECT_EQ(TradeOff(graph).floor(), floor);
}

TEST(TradeOff, OffersPlansBelowTheFloorAtTheFloorAndNotForLess) {
  // Searches that know seconds find smaller peaks now and then. Those must neither move the floor nor be lost.
  int below = 0;
  for (std::uint64_t seed = 0; seed < 25; ++seed) {
    SCOPED_TRACE(seed);
    const StepGraph graph = synthetic::random_graph(seed, 40);
    const TradeOff trade_off(graph);
    ASSERT_LE(trade_off.plans().back().predicted_peak, trade_off.floor());
    below += trade_off.plans().back().predicted_peak < trade_off.floor() ? 1 : 0;
    EXPECT_LE(trade_off.best(graph, {trade_off.floor(), 0}).predicted_peak, trade_off.floor());
    EXPECT_EQ(floor_under(trade_off, graph, {trade_off.floor() - 1, 0}).floor, trade_off.floor());
  }
  EXPECT_GT(below, 0);
}

TEST(TradeOff, IsDeterministic) {
  const StepGraph graph = synthetic::random_graph(7, 40);
  EXPECT_EQ(TradeOff(graph).plans(), TradeOff(graph).plans());
}

TEST(TradeOff, PlansAStepWithoutSavedTensors) {
  synthetic::GraphBuilder g(100);
  const ValueId leaf = g.leaf();
  const ValueId a = g.op("a", {leaf}, 50);
  g.die(a);
  g.settle();
  const TradeOff trade_off(g.graph());
  EXPECT_EQ(trade_off.best(g.graph(), {150, 0}).predicted_peak, 150);
  EXPECT_THROW((void)trade_off.best(g.graph(), {149, 0}), DoesNotFit);
}

TEST(TradeOff, PlansAnEmptyStep) {
  const StepGraph graph;
  EXPECT_EQ(TradeOff(graph).best(graph, {1, 0}).predicted_peak, 0);
}

}  // namespace
}  // namespace snug::plan
