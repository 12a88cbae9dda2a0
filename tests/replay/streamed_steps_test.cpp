// Planned steps of models that are larger than their budget: the plan says how much of it is a window for weights,
// gradients and optimizer state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "snug/replay/gradient_hooks.h"
#include "snug/snug.h"
#include "tests/replay/all_tiers.h"
#include "tests/replay/by_hand.h"

namespace snug {
namespace {

using testing::all_tiers;
using testing::batch;
using testing::expect_same;
using testing::kWeight;
using testing::test_memory;

/// Sixteen weights and the momentum of each: four times what a step gets.
struct Large : testing::ByHand {
  Large() : ByHand(16) {}
};

std::vector<at::Tensor> large_trained_plainly(int steps) { return testing::trained_plainly(16, steps); }

Bytes bytes_of(const std::vector<at::Tensor>& tensors) {
  Bytes bytes = 0;
  for (const at::Tensor& t : tensors) bytes += static_cast<Bytes>(t.nbytes());
  return bytes;
}

TEST(StreamedSteps, AModelOfFourTimesTheBudgetTrainsToTheSameBits) {
  constexpr int kSteps = 5;
  const std::vector<at::Tensor> expected = large_trained_plainly(kSteps);
  for (const StreamOptions& options : all_tiers()) {
    Large large;
    const Bytes before = test_memory().stats().allocated;
    const Bytes budget = before - bytes_of(large.state()) + 2_MiB;
    EXPECT_GE(bytes_of(large.state()), 4 * 2_MiB);
    const auto streamed = std::make_shared<StreamedTensors>(options);
    streamed->add(large.state());
    Session session = fit([&](const at::Tensor& x) { return large(x); }, batch(0),
                          {.budget = budget, .streamed = streamed, .update = [&] { large.update(); }});
    EXPECT_GE(streamed->window()->window().bytes, 2 * kWeight);
    const std::int64_t outside = streamed->totals().outside;
    for (int i = 0; i < kSteps; ++i) {
      test_memory().reset_peak();
      session.backward([&](const at::Tensor& x) { return large(x); }, batch(i));
      EXPECT_LE(test_memory().stats().allocated_peak, session.predicted_peak()) << "in backward";
      large.update();
      large.zero_grad();
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
      EXPECT_LE(test_memory().stats().mapped_peak, budget);
      EXPECT_LE(test_memory().stats().allocated_peak, session.predicted_peak());
    }
    EXPECT_EQ(streamed->totals().outside, outside) << "all that operators use at once has room in the window";
    { const Session over = std::move(session); }
    streamed->bring_back();
    expect_same(expected, large.state());
  }
}

TEST(StreamedSteps, UpdatesInTheBackwardPassFindThem) {
  constexpr int kSteps = 3;
  const std::vector<at::Tensor> expected = large_trained_plainly(kSteps);
  Large large;
  const auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 1_GiB});
  const Bytes budget = test_memory().stats().allocated - bytes_of(large.state()) + 2_MiB;
  streamed->add(large.state());
  const std::vector<at::Tensor> parameters = large.parameters();
  const auto each = [&](const at::Tensor& p) {
    const auto found = std::ranges::find_if(parameters, [&](const at::Tensor& t) { return t.is_same(p); });
    large.update_one(static_cast<std::size_t>(found - parameters.begin()));
    at::Tensor(p).mutable_grad() = at::Tensor();
  };
  replay::Rehearsal rehearsal;
  rehearsal.each = each;
  Session session = fit([&](const at::Tensor& x) { return large(x); }, batch(0),
                        {.budget = budget, .streamed = streamed, .optimizer = rehearsal});
  const Bytes out = streamed->totals().out;
  for (int i = 0; i < kSteps; ++i) {
    const replay::GradientHooks hooks(parameters, each);
    session.backward([&](const at::Tensor& x) { return large(x); }, batch(i));
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  }
  EXPECT_LE(streamed->totals().out - out, kSteps * 32 * kWeight) << "gradients are used where they arrive";
  { const Session over = std::move(session); }
  streamed->bring_back();
  expect_same(expected, large.state());
}

TEST(StreamedSteps, AccumulateGradientsOverMicroBatches) {
  const auto train = [](Large& large, const auto& backward) {
    for (int i = 0; i < 3; ++i) {
      for (int k = 0; k < 2; ++k) backward(batch(2 * i + k));
      large.update();
      large.zero_grad();
    }
  };
  Large plain, large;
  train(plain, [&](const at::Tensor& x) { plain(x).backward(); });
  const auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 1_GiB});
  const Bytes budget = test_memory().stats().allocated - bytes_of(large.state()) + 2_MiB;
  streamed->add(large.state());
  Session session =
      fit([&](const at::Tensor& x) { return large(x); }, batch(0),
          {.budget = budget, .streamed = streamed, .update = [&] { large.update(); }, .micro_batches = 2});
  const std::int64_t outside = streamed->totals().outside;
  train(large, [&](const at::Tensor& x) {
    session.backward([&](const at::Tensor& y) { return large(y); }, x);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  });
  EXPECT_EQ(streamed->totals().outside, outside);
  { const Session over = std::move(session); }
  streamed->bring_back();
  expect_same(plain.state(), large.state());
}

TEST(StreamedSteps, OptimizersOfLibTorchHaveTheirMomentsStreamedAsTheyMakeThem) {
  const auto train = [](Large& large, torch::optim::Optimizer& optimizer, const auto& backward) {
    for (int i = 0; i < 4; ++i) {
      backward(batch(i));
      optimizer.step();
      large.zero_grad();
    }
  };
  Large plain;
  torch::optim::AdamW plain_optimizer(plain.parameters());
  train(plain, plain_optimizer, [&](const at::Tensor& x) { plain(x).backward(); });
  Large large;
  large.momenta.clear();
  torch::optim::AdamW optimizer(large.parameters());
  const auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 1_GiB});
  // Weights, gradients and two moments are 16 MiB.
  const Bytes budget = test_memory().stats().allocated - bytes_of(large.state()) + 3_MiB;
  streamed->add(large.parameters());
  Session session = fit([&](const at::Tensor& x) { return large(x); }, batch(0),
                        {.budget = budget, .streamed = streamed, .optimizer = optimizer});
  train(large, optimizer, [&](const at::Tensor& x) {
    session.backward([&](const at::Tensor& y) { return large(y); }, x);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  });
  { const Session over = std::move(session); }
  streamed->bring_back();
  expect_same(plain.parameters(), large.parameters());
}

TEST(StreamedSteps, SomebodyMayKeepAGradientAndFitAgain) {
  Large plain;
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < 2; ++k) {
      plain(batch(i + k)).backward();
      plain.update();
      plain.zero_grad();
    }
  }
  Large large;
  const auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 1_GiB});
  const Bytes budget = test_memory().stats().allocated - bytes_of(large.state()) + 3_MiB;
  streamed->add(large.state());
  const auto step = [&](const at::Tensor& x) { return large(x); };
  const FitOptions options{.budget = budget, .streamed = streamed, .update = [&] { large.update(); }};
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 3; ++i) {
    Session session = fit(step, batch(0), options);  // which hooks what the last one did
    for (int k = 0; k < 2; ++k) {
      session.backward(step, batch(i + k));
      EXPECT_EQ(large.parameters().back().grad().defined(), true);
      EXPECT_EQ(large.parameters()[2].grad().storage().data(), nullptr) << "it has left";
      kept = {large.parameters().front().grad()};
      large.update();
      large.zero_grad();
    }
  }
  streamed->bring_back();
  expect_same(plain.state(), large.state());
}

TEST(StreamedSteps, WithLessThanTheSmallestWindowDoNotFit) {
  Large large;
  const auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 1_GiB});
  const Bytes budget = test_memory().stats().allocated - bytes_of(large.state()) + 2 * kWeight;
  streamed->add(large.state());
  EXPECT_THROW(fit([&](const at::Tensor& x) { return large(x); }, batch(0),
                   {.budget = budget, .streamed = streamed, .update = [&] { large.update(); }}),
               DoesNotFit);
  EXPECT_THROW(fit([&](const at::Tensor& x) { return large(x); }, batch(0),
                   {.budget = 1_GiB, .host_budget = 1_GiB, .streamed = streamed}),
               UsageError)
      << "whose budgets?";
}

TEST(StreamedSteps, ThatFitWholeCostNothing) {
  Large large;
  const auto streamed = std::make_shared<StreamedTensors>(StreamOptions{.host_budget = 1_GiB});
  streamed->add(large.state());
  Session session = fit(
      [&](const at::Tensor& x) { return large(x); }, batch(0),
      {.budget = test_memory().stats().allocated + 64_MiB, .streamed = streamed, .update = [&] { large.update(); }});
  const auto step = [&](int i) {
    session.backward([&](const at::Tensor& x) { return large(x); }, batch(i));
    large.update();
    large.zero_grad();
  };
  for (int i = 0; i < 2; ++i) step(i);
  const auto before = streamed->totals();
  step(2);
  EXPECT_EQ(streamed->totals().in, before.in);
  EXPECT_EQ(streamed->totals().out, before.out);
}

}  // namespace
}  // namespace snug
