// Steps of several kinds: recorded before, planned from the start, one floor for all.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "snug/plan/run/presets.h"
#include "snug/record/recording_key.h"
#include "snug/snug.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"

namespace snug {
namespace {

using testing::expect_same;
using testing::Net;
using testing::same_bits;
using testing::test_memory;
using testing::unplanned_peak;

TEST(Kinds, KindsOfStepsThatWereRecordedHavePlansFromTheStart) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256}), shorter = torch::randn({1536, 256});
  const auto expected = net.plain(x), expected_shorter = net.plain(shorter);
  const Bytes budget = unplanned_peak(net, x) * 7 / 10;
  std::vector<replay::RecordedStep> kinds;
  for (const at::Tensor& batch : {x, shorter})
    kinds.push_back(replay::record_step([&] { return net(batch); }, test_memory()));
  Session session(std::move(kinds), "optimal", plan::Budget::for_limit(budget), test_memory());
  test_memory().reset_peak();
  for (const bool is_short : {true, false, true}) {
    session.backward(net, is_short ? shorter : x);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_EQ(session.last_step().known, 2U);
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_FALSE(session.last_step().planned_anew);
    EXPECT_LE(session.plan().predicted_peak, budget);
    expect_same(is_short ? expected_shorter : expected, net.gradients());
    net.layers->zero_grad();
  }
  EXPECT_LE(test_memory().stats().mapped_peak, budget);
}

TEST(Kinds, ABudgetIsForAllKindsOfSteps) {
  Net net;
  const at::Tensor x = torch::randn({256, 256}), wide = torch::randn({4096, 256});
  std::vector<replay::RecordedStep> kinds;
  kinds.push_back(replay::record_step([&] { return net(x); }, test_memory()));
  kinds.push_back(
      replay::record_step([&] { return net(wide).detach(); }, test_memory(), {.until = replay::RecordUntil::Loss}));
  const Bytes training = replay::smallest_budget(replay::planned({kinds.front()}, "optimal"));
  const Bytes all = replay::smallest_budget(replay::planned(kinds, "optimal"));
  ASSERT_GT(all, training);
  EXPECT_NO_THROW(Session(kinds.front(), "optimal", plan::Budget::for_limit(training), test_memory()));
  try {
    const Session session(kinds, "optimal", plan::Budget::for_limit(training), test_memory());
    FAIL() << "no error";
  } catch (const DoesNotFit& error) {
    EXPECT_EQ(error.floor().floor, all);
    const Bytes shared = plan::plan_none(kinds.front().graph).predicted_peak;
    EXPECT_EQ(error.floor().unplanned_peak, shared) << "a budget is a share of the training step's";
  }
  Session session(kinds, "optimal", plan::Budget::for_limit(all), test_memory());
  session.backward(net, x);
  EXPECT_TRUE(session.last_step().followed_plan) << "it is not taken for the other kind";
  net.layers->zero_grad();
  const at::NoGradGuard no_grad;
  EXPECT_NO_THROW((void)net(wide));
}

TEST(Kinds, FitForeseesTheGradientsOfMicroBatches) {
  Net net;
  const std::vector<at::Tensor> batches = {torch::randn({2048, 256}), torch::randn({2048, 256}),
                                           torch::randn({2048, 256})};
  for (const at::Tensor& x : batches) net(x).backward();
  const auto expected = net.gradients();
  net.layers->zero_grad();
  const auto floor_of = [&](std::int64_t micro_batches) {
    std::vector<replay::RecordedStep> kinds =
        replay::record_micro_batches(micro_batches, std::nullopt, [&] { return net(batches[0]); }, test_memory(), {});
    EXPECT_EQ(kinds.size(), micro_batches > 1 ? 2U : 1U);
    EXPECT_EQ(kinds.front().kind, micro_batches > 1 ? replay::StepKind::Later : replay::StepKind::First);
    return replay::smallest_budget(replay::planned(std::move(kinds), "optimal"));
  };
  const Bytes alone = floor_of(1), together = floor_of(3);
  EXPECT_GT(together, alone) << "gradients are there";
  EXPECT_THROW((void)fit(net, batches[0], {.budget = alone, .micro_batches = 3}), DoesNotFit);
  auto session = fit(net, batches[0], {.budget = together, .micro_batches = 3});
  test_memory().reset_peak();
  for (const at::Tensor& x : batches) {
    session.backward(net, x);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_FALSE(session.last_step().planned_anew);
    EXPECT_EQ(session.last_step().evictions, 0);
  }
  EXPECT_LE(test_memory().stats().mapped_peak, together);
  expect_same(expected, net.gradients());
  EXPECT_THROW((void)fit(net, batches[0], {.budget = together, .micro_batches = 0}), UsageError);
}

TEST(Kinds, ALaterMicroBatchIsRecordedWithGradientsThatAreThere) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256}), more = torch::randn({2048, 256});
  std::vector<replay::RecordedStep> kinds;
  const auto record = [&](replay::RecordOptions options) {
    return replay::record_step([&] { return net(x); }, test_memory(), options);
  };
  replay::RecordedStep first = record({});
  kinds.push_back(record({.have_gradients = first.parameters}));
  kinds.push_back(std::move(first));
  EXPECT_EQ(kinds[0].kind, replay::StepKind::Later);
  EXPECT_EQ(kinds[0].graph.static_bytes - kinds[1].graph.static_bytes, kinds[0].passing.front().gradients);
  EXPECT_GT(kinds[0].passing.front().gradients, 0);
  EXPECT_EQ(kinds[1].passing.front().gradients, 0);
  for (const at::Tensor& p : net.layers->parameters()) EXPECT_FALSE(p.grad().defined());
  net(x).backward();
  net(more).backward();
  const auto expected = net.gradients();
  net.layers->zero_grad();
  const Bytes unplanned = plan::plan_none(kinds[0].graph).predicted_peak, budget = unplanned * 7 / 10;
  Session session(std::move(kinds), "optimal", plan::Budget::for_limit(budget), test_memory());
  for (int i = 0; i < 2; ++i) {
    test_memory().reset_peak();
    session.backward(net, x);
    EXPECT_TRUE(session.last_step().followed_plan);
    session.backward(net, more);
    EXPECT_TRUE(session.last_step().followed_plan);
    EXPECT_EQ(session.last_step().known, 2U);
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_FALSE(session.last_step().planned_anew);
    expect_same(expected, net.gradients());
    net.layers->zero_grad();
    EXPECT_LE(test_memory().stats().mapped_peak, budget);
  }
}

TEST(Kinds, RecordingPredictsThePeakOfAPassWithoutGradients) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const replay::RecordedStep step =
      replay::record_step([&] { return net(x); }, test_memory(), {.until = replay::RecordUntil::Loss});
  EXPECT_EQ(step.kind, replay::StepKind::Evaluation);
  EXPECT_TRUE(step.parameters.empty());
  test_memory().reset_peak();
  {
    const at::NoGradGuard no_grad;
    (void)net(x);
  }
  EXPECT_EQ(plan::plan_none(step.graph).predicted_peak, test_memory().stats().allocated_peak);
}

/// As micro-batches that come from other processes.
TEST(Kinds, RecordingAPassWithoutGradientsHoldsNoneOfItsInputs) {
  Net net;
  const auto pass = [&](int parts) {
    at::Tensor sum = torch::zeros({});
    for (int i = 0; i < parts; ++i) {
      const at::Tensor x = [] {
        const c10::impl::ExcludeDispatchKeyGuard unseen(record::kRecordingKey);
        return torch::randn({2048, 256});
      }();
      sum += net(x);
    }
    return sum;
  };
  test_memory().reset_peak();
  {
    const at::NoGradGuard no_grad;
    (void)pass(8);
  }
  const Bytes measured = test_memory().stats().allocated_peak;
  for (const int parts : {2, 8}) {
    const replay::RecordedStep step =
        replay::record_step([&] { return pass(parts); }, test_memory(), {.until = replay::RecordUntil::Loss});
    EXPECT_EQ(plan::plan_none(step.graph).predicted_peak, measured) << parts;
  }
}

TEST(Kinds, RecordingAPassWithoutGradientsLeavesNoTrace) {
  Net net;
  const at::Tensor x = torch::randn({64, 256}), running = torch::zeros({256});
  torch::manual_seed(11);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(11);
  const auto pass = [&] {
    running.add_(x.mean(0));
    return net(at::dropout(x, 0.1, /*train=*/true));
  };
  (void)replay::record_step(pass, test_memory(), {.until = replay::RecordUntil::Loss});
  EXPECT_TRUE(same_bits(expected, torch::rand({4})));
  EXPECT_TRUE(same_bits(running, torch::zeros({256})));
  for (const at::Tensor& gradient : net.gradients()) EXPECT_FALSE(gradient.defined());
}

}  // namespace
}  // namespace snug
