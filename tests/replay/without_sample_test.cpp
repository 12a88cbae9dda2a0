// Sessions without a sample: the first real step is recorded as it runs, under the cap, and nothing runs twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/out_of_budget.h"
#include "snug/snug.h"
#include "tests/base/fault.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"

namespace snug {
namespace {

using testing::expect_same;
using ::testing::HasSubstr;
using testing::Net;
using testing::test_memory;
using testing::unplanned_peak;

FitOptions options(Bytes budget) { return {.budget = budget, .device = testing::test_device()}; }

TEST(WithoutASample, TheFirstStepIsEvictedAndTheSecondFollowsAPlan) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const Bytes budget = unplanned_peak(net, x) * 7 / 10;
  int calls = 0;
  const auto step = [&](const at::Tensor& batch) {
    ++calls;
    return net(batch);
  };
  Session session = fit(options(budget));
  EXPECT_EQ(calls, 0);
  test_memory().reset_peak();

  session.backward(step, x);
  expect_same(expected, net.gradients());
  EXPECT_FALSE(session.last_step().followed_plan);
  EXPECT_THAT(session.last_step().divergence, HasSubstr("the first step"));
  EXPECT_TRUE(session.last_step().planned_anew);
  EXPECT_GT(session.last_step().evictions, 0);

  for (int i = 0; i < 2; ++i) {
    net.layers->zero_grad();
    session.backward(step, x);
    expect_same(expected, net.gradients());
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_EQ(session.last_step().evictions, 0);
    EXPECT_GT(session.last_step().replayed_ops, 0);
  }
  EXPECT_EQ(calls, 3) << "each step ran once";
  EXPECT_LE(test_memory().stats().mapped_peak, budget);
  EXPECT_LE(session.predicted_peak(), budget);
}

TEST(WithoutASample, StepsThatFindGradientsAreAKindOfTheirOwn) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  net.layers->zero_grad();
  for (int i = 0; i < 3; ++i) net(x).backward();
  const auto expected = net.gradients();
  net.layers->zero_grad();
  Session session = fit(options(unplanned_peak(net, x)));
  for (int i = 0; i < 3; ++i) {
    session.backward(net, x);
    EXPECT_EQ(session.last_step().planned_anew, i < 2);
    EXPECT_EQ(session.last_step().followed_plan, i > 0) << "that of a step without gradients before it, at first";
  }
  expect_same(expected, net.gradients());
}

TEST(WithoutASample, AStepThatUpdatesIsTheSameAsPlain) {
  const at::Tensor x = torch::randn({1024, 256});
  const auto train = [&](std::optional<Bytes> budget) {
    Net net;
    torch::optim::AdamW optimizer(net.layers->parameters(), torch::optim::AdamWOptions(1e-3));
    const auto step = [&](const at::Tensor& batch) {
      optimizer.zero_grad();
      const at::Tensor loss = net(batch);
      loss.backward();
      optimizer.step();
      return loss;
    };
    std::optional<Session> session;
    if (budget) session.emplace(fit(options(*budget)));
    for (int i = 0; i < 4; ++i) {
      if (session) {
        session->backward(step, x);
      } else {
        step(x);
      }
    }
    if (session) {
      EXPECT_TRUE(session->last_step().followed_plan) << session->last_step().divergence;
    }
    session.reset();
    std::vector<at::Tensor> weights;
    for (const at::Tensor& p : net.layers->parameters()) weights.push_back(p.detach().clone());
    return weights;
  };
  const auto expected = train(std::nullopt);
  expect_same(expected, train(64_MiB));
}

TEST(WithoutASample, ThereIsNoPlanBeforeTheFirstStepAndABudgetThatIsTooSmallIsSaidByIt) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  Session session = fit(options(test_memory().stats().allocated + 1_MiB));
  EXPECT_THAT(testing::fault([&] { (void)session.plan(); }), HasSubstr("no step has run yet"));
  EXPECT_THROW(session.backward(net, x), OutOfBudget);
}

TEST(WithoutASample, OptionsThatNeedARecordingAreRefused) {
  Net net;
  torch::optim::SGD optimizer(net.layers->parameters(), 0.1);
  EXPECT_THAT(testing::fault([&] { (void)fit({.budget = 1_GiB, .optimizer = optimizer}); }),
              HasSubstr("without a sample nothing is recorded in advance, which an optimizer"));
  EXPECT_THAT(testing::fault([&] { (void)fit({.budget = 1_GiB, .micro_batches = 2}); }), HasSubstr("give a sample"));
  EXPECT_THROW((void)fit(FitOptions{.budget = 0}), UsageError);
  EXPECT_THROW((void)fit(FitOptions{.budget = 1_GiB, .strategy = "quickest"}), UsageError);
}

}  // namespace
}  // namespace snug
