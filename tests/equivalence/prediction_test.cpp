// What a plan promises and what its run does: peak, time, bits.
#include <gtest/gtest.h>

#include <cmath>

#include "snug/plan/run/explanation.h"
#include "snug/plan/run/presets.h"
#include "snug/plan/run/simulator.h"
#include "snug/plan/step/legal_actions.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/equivalence/nets.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::StepUnderTest;
using testing::Task;
using testing::test_memory;

Task make_task(const std::string& name) {
  torch::manual_seed(3);
  if (name == "resnet") return testing::resnet_task(16, 8, 32);
  if (name == "unet") return testing::unet_task(12, 4, 48);
  return testing::gpt_task({.blocks = 6, .width = 128, .heads = 4, .sequence = 64, .vocabulary = 256, .dropout = 0.1},
                           8, name == "gpt_bf16");
}

class Prediction : public ::testing::TestWithParam<const char*> {};

TEST_P(Prediction, OfThePeakIsWithinHalfAPercentFromTheUnplannedPeakToTheFloor) {
  Task task = make_task(GetParam());
  StepUnderTest test({task.model});
  const auto plain = test.run_plain(task.forward);
  const auto recorded = replay::record_step(task.forward, test_memory());
  const plan::Planner planner(recorded.graph, "optimal");
  const Bytes most = plan::plan_none(recorded.graph).predicted_peak, least = planner.floor(recorded.graph);
  EXPECT_LT(least - recorded.graph.static_bytes, (most - recorded.graph.static_bytes) * 6 / 10);
  for (int i = 0; i <= 10; ++i) {
    const plan::Budget budget{most - (most - least) * i / 10, 0};
    SCOPED_TRACE(::testing::Message() << "budget " << budget.limit << " of " << most);
    Session session(recorded, planner, budget, test_memory());
    test_memory().set_limit(std::nullopt);  // the plan alone, without the net under it
    const auto planned = test.run([&] {
      test_memory().reset_peak();
      const at::Tensor loss = session.backward(task.forward);
      const auto predicted = static_cast<double>(session.plan().predicted_peak);
      EXPECT_NEAR(static_cast<double>(test_memory().stats().allocated_peak), predicted, 0.005 * predicted);
      EXPECT_EQ(session.last_step().replayed_ops, plan::simulate(session.graph(), session.plan()).replayed_ops);
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
      return loss;
    });
    expect_same(plain, planned);
  }
}

TEST_P(Prediction, HoldsUnderTheCapAtTheFloor) {
  Task task = make_task(GetParam());
  StepUnderTest test({task.model});
  const auto plain = test.run_plain(task.forward);
  const auto recorded = replay::record_step(task.forward, test_memory());
  const plan::Planner planner(recorded.graph, "optimal");
  const Bytes floor = plan::Budget::for_limit(1).floor_for(planner.floor(recorded.graph));
  EXPECT_THROW(Session(recorded, planner, plan::Budget::for_limit(floor * 99 / 100), test_memory()), DoesNotFit);
  test_memory().release_cached();
  Session session(recorded, planner, plan::Budget::for_limit(floor * 101 / 100), test_memory());
  const auto planned = test.run([&] {
    test_memory().reset_peak();
    const at::Tensor loss = session.backward(task.forward);
    EXPECT_LE(test_memory().stats().mapped_peak, floor * 101 / 100);
    test_memory().set_limit(std::nullopt);  // for the copies of what is compared
    return loss;
  });
  expect_same(plain, planned);
}

TEST_P(Prediction, HoldsOfAPlanThatMovesValues) {
  Task task = make_task(GetParam());
  StepUnderTest test({task.model});
  const auto plain = test.run_plain(task.forward);
  const auto recorded = replay::record_step(task.forward, test_memory());
  plan::MemoryPlan plan = plan::plan_none(recorded.graph);
  Bytes moved = 0;
  std::size_t turn = 0;
  for (plan::ValueId v = 0; v < recorded.graph.flow.values(); ++v) {
    if (!recorded.graph.values[plan::at(v)].saved || !plan::has_choice(recorded.graph, v)) continue;
    if (++turn % 3 != 0) plan.actions[plan::at(v)] = turn % 3 == 1 ? plan::kMove : plan::kRecompute;
    if (turn % 3 == 1) moved += recorded.graph.values[plan::at(v)].bytes;
  }
  ASSERT_GT(moved, 0);
  EXPECT_EQ(plan::explain(recorded.graph, plan).all.moved, moved);
  Session session(recorded, plan::Planner(recorded.graph, plan), std::nullopt, test_memory());
  const auto planned = test.run([&] {
    test_memory().reset_peak();
    const at::Tensor loss = session.backward(task.forward);
    const auto predicted = static_cast<double>(session.plan().predicted_peak);
    EXPECT_LT(session.plan().predicted_peak, session.plan().unplanned_peak);
    EXPECT_NEAR(static_cast<double>(test_memory().stats().allocated_peak), predicted, 0.005 * predicted);
    EXPECT_EQ(session.last_step().replayed_ops, plan::simulate(session.graph(), session.plan()).replayed_ops);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    return loss;
  });
  expect_same(plain, planned);
}

INSTANTIATE_TEST_SUITE_P(Nets, Prediction, ::testing::Values("gpt", "gpt_bf16", "resnet", "unet"),
                         [](const auto& net) { return std::string(net.param); });

}  // namespace
}  // namespace snug
