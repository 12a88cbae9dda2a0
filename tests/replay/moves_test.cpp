// Plans that move what autograd saves to the host's memory: chosen where that is quicker than making it again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "snug/plan/run/explanation.h"
#include "snug/plan/run/simulator.h"
#include "snug/replay/moves.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::Net;
using testing::test_memory;
using testing::unplanned_peak;

/// Copies take next to nothing, so that plans move whatever they need not keep.
replay::RecordedStep with_quick_copies(Net& net, const at::Tensor& x, std::optional<Bytes> host) {
  replay::RecordedStep step = replay::record_step([&] { return net(x); }, test_memory());
  step.graph.moves.host = plan::MoveCost{
      .out_seconds_per_byte = 1e-15, .in_seconds_per_byte = 1e-15, .seconds_per_copy = 1e-12, .budget = host};
  return step;
}

TEST(Moves, AreChosenRunAndCountedAsThePlanSays) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const Bytes budget = unplanned_peak(net, x) * 6 / 10;
  for (const std::optional<Bytes> host : {std::optional<Bytes>(), std::optional<Bytes>(6_MiB)}) {
    net.layers->zero_grad();
    replay::RecordedStep step = with_quick_copies(net, x, host);
    const plan::StepGraph graph = step.graph;
    Session session(std::move(step), "optimal", plan::Budget::for_limit(budget), test_memory());
    session.use(std::make_shared<memory::Tiers>(memory::TierBudgets{.host = host.value_or(1_GiB)}));
    const plan::Simulation run = plan::simulate(graph, session.plan());
    ASSERT_GT(run.host_peak, 0);
    Bytes held = 0;
    for (int i = 0; i < 10; ++i) {
      net.layers->zero_grad();
      test_memory().reset_peak();
      session.backward(net, x);
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
      EXPECT_EQ(session.last_step().replayed_ops, run.replayed_ops);
      EXPECT_EQ(session.last_step().evictions, 0);
      const auto moved = static_cast<double>(plan::explain(graph, session.plan()).all.moved);
      EXPECT_NEAR(static_cast<double>(session.last_step().moved_bytes), moved, 0.005 * moved);
      EXPECT_LE(test_memory().stats().mapped_peak, budget);
      const auto predicted = static_cast<double>(session.plan().predicted_peak);
      EXPECT_NEAR(static_cast<double>(test_memory().stats().allocated_peak), predicted, 0.005 * predicted);
      const memory::TierStats there = session.tiers().stats(memory::Tier::Host);
      EXPECT_EQ(there.taken, 0) << "nothing stays there";
      EXPECT_NEAR(static_cast<double>(there.taken_peak), static_cast<double>(run.host_peak), 64_KiB);
      EXPECT_TRUE(held == 0 || there.held == held) << "each step uses the memory of the first again";
      held = there.held;
    }
    EXPECT_LE(held, host.value_or(1_GiB));
    EXPECT_EQ(run.replayed_ops > 0, host.has_value()) << "what has no room there is made again";
    expect_same(expected, net.gradients());
  }
}

TEST(Moves, TakeTheReplaysAwayAtTheFloor) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const auto step = with_quick_copies(net, x, std::nullopt);
  plan::StepGraph without = step.graph;
  without.moves.host.reset();
  const Bytes floor = plan::TradeOff(without).floor();
  EXPECT_LE(plan::TradeOff(step.graph).floor(), floor);
  const plan::Budget budget = plan::Budget::for_limit(plan::Budget::for_limit(1).floor_for(floor));
  EXPECT_GT(plan::simulate(without, plan::make_plan(without, "optimal", budget)).replayed_ops, 10);
  Session session(step, "optimal", budget, test_memory());
  session.backward(net, x);
  EXPECT_LT(session.last_step().replayed_ops, 3);
  EXPECT_EQ(session.last_step().evictions, 0);
  expect_same(expected, net.gradients());
}

TEST(Moves, ThatFindNoRoomStayAndGoWhereMemoryRunsOut) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const Bytes budget = unplanned_peak(net, x) * 6 / 10;
  replay::RecordedStep step = with_quick_copies(net, x, std::nullopt);
  Session session(std::move(step), "optimal", plan::Budget::for_limit(budget), test_memory());
  session.use(std::make_shared<memory::Tiers>(memory::TierBudgets{.host = 3_MiB}));
  test_memory().reset_peak();
  session.backward(net, x);
  EXPECT_GT(session.last_step().moved_bytes, 0);
  EXPECT_LT(session.last_step().moved_bytes, plan::explain(session.graph(), session.plan()).all.moved);
  EXPECT_GT(session.last_step().evictions, 0);
  EXPECT_TRUE(session.last_step().followed_plan);
  EXPECT_LE(test_memory().stats().mapped_peak, budget);
  expect_same(expected, net.gradients());
}

TEST(Moves, AreMeasuredAndOffWithoutABudgetForThem) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const Bytes budget = unplanned_peak(net, x) * 7 / 10;
  EXPECT_EQ(fit(net, x, {.budget = budget}).graph().moves.host, std::nullopt);
  EXPECT_THROW(fit(net, x, {.budget = budget, .host_budget = 0}), UsageError);
  Session session = fit(net, x, {.budget = budget, .host_budget = 64_MiB});
  ASSERT_TRUE(session.graph().moves.host);
  EXPECT_EQ(session.graph().moves.host->budget, 64_MiB);
  // Between 10 MB/s and 1 TB/s.
  for (const double seconds :
       {session.graph().moves.host->out_seconds_per_byte, session.graph().moves.host->in_seconds_per_byte}) {
    EXPECT_GT(seconds, 1e-12);
    EXPECT_LT(seconds, 1e-7);
  }
  net.layers->zero_grad();
  session.backward(net, x);
  EXPECT_GT(session.last_step().moved_bytes + session.last_step().replayed_ops, 0);
  expect_same(expected, net.gradients());
}

}  // namespace
}  // namespace snug
