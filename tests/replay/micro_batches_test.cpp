// Steps that go backward with several micro-batches, one by one: each on a tape of its own, all under one plan.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "snug/plan/run/presets.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"
#include "tests/replay/schedule.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::fit_schedule;
using testing::holds;
using testing::Net;
using testing::random_batches;
using testing::Schedule;
using testing::test_memory;
using testing::unplanned_peak_of;

TEST(MicroBatches, AreUnderOnePlanThatKnowsHowManyAreInFlight) {
  Net net;
  for (const std::size_t in_flight : {1, 3, 6}) {
    SCOPED_TRACE(::testing::Message() << in_flight << " in flight");
    const Schedule schedule{net, in_flight, random_batches(6), true};
    torch::manual_seed(3);
    (void)schedule();
    const auto expected = net.gradients();
    net.layers->zero_grad();
    const Bytes unplanned = unplanned_peak_of(schedule);
    EXPECT_EQ(holds(schedule, expected, unplanned * 11 / 10), 0);
    std::int64_t before = 0;
    for (const int percent : {80, 60}) {
      const std::int64_t replayed = holds(schedule, expected, unplanned * percent / 100);
      EXPECT_GT(replayed, before) << percent;
      before = replayed;
    }
    auto kinds = replay::planned({replay::record_step(schedule, test_memory())}, "optimal");
    holds(schedule, expected, replay::smallest_budget(kinds));
  }
}

TEST(MicroBatches, HoldAtMostWhatAsManyDo) {
  Net net;
  const auto batches = random_batches(6);
  const auto peak_of = [&](std::size_t in_flight) { return unplanned_peak_of({net, in_flight, batches}); };
  const Bytes one = peak_of(1), two = peak_of(2), five = peak_of(5);
  EXPECT_GT(two, one);
  EXPECT_EQ(five - two, 3 * (two - one));
}

TEST(MicroBatches, AreRecordedWithoutATrace) {
  Net net;
  const Schedule schedule{net, 2, random_batches(4), true};
  torch::manual_seed(3);
  (void)schedule();
  const auto before = net.gradients();
  const at::Tensor draws = at::detail::getDefaultCPUGenerator().get_state();
  const replay::RecordedStep step = replay::record_step(schedule, test_memory());
  expect_same(before, net.gradients());
  EXPECT_TRUE(testing::same_bits(draws, at::detail::getDefaultCPUGenerator().get_state()));
  EXPECT_EQ(step.kind, replay::StepKind::MicroBatch);
  EXPECT_EQ(step.parameters.size(), net.layers->parameters().size());
  EXPECT_TRUE(step.further.empty());
  EXPECT_EQ(step.graph.in_flight, 2);
}

/// An update inside of the step, whose state is to come, behind the last of them.
TEST(MicroBatches, AreFollowedByTheUpdateOfTheStep) {
  const auto run = [](std::optional<double> share) {
    Net net;
    torch::optim::AdamW optimizer(net.layers->parameters(), torch::optim::AdamWOptions(1e-3));
    const Schedule schedule{net, 2, random_batches(4)};
    const auto step = [&](int) {
      at::Tensor loss = schedule();
      optimizer.step();
      optimizer.zero_grad();
      return loss;
    };
    if (!share) {
      for (int i = 0; i < 3; ++i) (void)step(0);
    } else {
      const replay::Rehearsal update(optimizer);
      const auto recorded = replay::record_step([&] { return step(0); }, test_memory(),
                                                {.update = update, .until = replay::RecordUntil::UpdateBegins});
      EXPECT_GT(recorded.graph.update_seconds, 0);
      const auto peak = static_cast<double>(plan::plan_none(recorded.graph).predicted_peak);
      const auto budget = static_cast<Bytes>(*share * peak);
      Session session(recorded, "optimal", plan::Budget::for_limit(budget), test_memory());
      for (int i = 0; i < 3; ++i) {
        test_memory().reset_peak();
        session.backward(step, 0);
        EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
        EXPECT_EQ(session.last_step().evictions, 0);
        EXPECT_LE(test_memory().stats().mapped_peak, budget);
      }
      EXPECT_GT(session.last_step().replayed_ops, 0);
    }
    std::vector<at::Tensor> weights;
    for (const at::Tensor& p : net.layers->parameters()) weights.push_back(p.detach().clone());
    return weights;
  };
  torch::manual_seed(7);
  const auto expected = run(std::nullopt);
  torch::manual_seed(7);
  expect_same(expected, run(0.75));
}

/// Of other shapes than those that were recorded.
TEST(MicroBatches, ThatNobodyHasSeenArePlannedWhenTheyComeAgain) {
  Net net;
  const Schedule known{net, 2, random_batches(4)}, other{net, 2, random_batches(4, 768)};
  const Bytes budget = unplanned_peak_of(known) * 7 / 10;
  (void)other();
  const auto expected = net.gradients();
  net.layers->zero_grad();
  Session session = fit_schedule(known, budget);
  test_memory().reset_peak();
  for (int step = 0; step < 4; ++step) {
    session.backward(other);
    session.finish_searches();
    expect_same(expected, net.gradients());
    net.layers->zero_grad();
    EXPECT_LE(test_memory().stats().mapped_peak, budget);
  }
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  EXPECT_EQ(session.last_step().evictions, 0);
  EXPECT_EQ(session.graph().in_flight, 2);
  EXPECT_EQ(session.last_step().known, 2U) << "as micro-batches that are alike are known once";
}

}  // namespace
}  // namespace snug
