// Steps with several forward and backward passes, one after the other: two optimizers in turns, perturbed weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "snug/memory/held_limit.h"
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

/// A generator and a critic, each with an optimizer of its own, which a step updates in turns.
struct Gan {
  Gan()
      : of_generator(generator.layers->parameters(), torch::optim::AdamOptions(1e-3)),
        of_critic(critic.layers->parameters(), torch::optim::AdamOptions(1e-3)) {}

  at::Tensor operator()(const at::Tensor& x) {
    const at::Tensor made = generator.layers->forward(x);
    of_critic.zero_grad();
    (critic(made.detach()) - critic(x)).square().backward();
    of_critic.step();
    of_generator.zero_grad();
    const at::Tensor loss = critic(generator.layers->forward(x));
    loss.backward();
    of_generator.step();
    return loss;
  }
  [[nodiscard]] std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> all;
    for (const Net* net : {&generator, &critic}) {
      for (const at::Tensor& p : net->layers->parameters()) all.push_back(p.detach().clone());
    }
    return all;
  }
  Net generator{4}, critic{4};
  torch::optim::Adam of_generator, of_critic;
};

TEST(SeveralPasses, OfAGanAreStepsOfTheirOwn) {
  const at::Tensor x = torch::randn({1024, 256});
  Gan{}(x);  // the first products of a process may have other bits than all later ones, without snug too
  Gan plain, planned;
  for (int i = 0; i < 5; ++i) plain(x);
  auto session = fit(planned, x, {.budget = test_memory().stats().allocated + 26_MiB});
  test_memory().reset_peak();
  for (int i = 0; i < 5; ++i) {
    session.backward(planned, x);
    session.finish_searches();  // of plans for what the optimizers' state leaves
    if (i > 2) {
      EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
      EXPECT_EQ(session.last_step().evictions, 0);
    }
  }
  EXPECT_GT(session.last_step().replayed_ops, 0);
  EXPECT_LE(test_memory().stats().mapped_peak, session.plan().budget);
  const memory::HeldLimit none(test_memory(), std::nullopt);
  expect_same(plain.weights(), planned.weights());
}

TEST(SeveralPasses, OfPerturbedWeightsAreStepsOfTheirOwn) {
  const at::Tensor x = torch::randn({1024, 256});
  // Sharpness-aware minimization: the gradient at weights that a first gradient has moved.
  const auto step_of = [&](Net& net) {
    return [&net](const at::Tensor& batch) {
      net.layers->zero_grad();
      net(batch).backward();
      std::vector<at::Tensor> moves;
      {
        const torch::NoGradGuard no_grad;
        for (at::Tensor& p : net.layers->parameters()) {
          moves.push_back(p.grad() * 0.05);
          p.add_(moves.back());
        }
      }
      net.layers->zero_grad();
      const at::Tensor loss = net(batch);
      loss.backward();
      const torch::NoGradGuard no_grad;
      for (std::size_t i = 0; i < moves.size(); ++i) net.layers->parameters()[i].sub_(moves[i]);
      return loss;
    };
  };
  Net plain, planned;
  const auto plain_step = step_of(plain);
  for (int i = 0; i < 4; ++i) plain_step(x);
  const auto step = step_of(planned);
  auto session = fit(step, x, {.budget = unplanned_peak(planned, x) * 9 / 10});
  for (int i = 0; i < 4; ++i) session.backward(step, x);
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  expect_same(plain.gradients(), planned.gradients());
}

TEST(SeveralPasses, AForwardPassBehindTheBackwardPassIsNoStep) {
  Net net;
  const at::Tensor x = torch::randn({256, 256});
  const auto step = [&](const at::Tensor& batch) {
    at::Tensor loss = net(batch);
    loss.backward();
    (void)net(batch);  // with gradients, as a validation that has forgotten no_grad
    return loss;
  };
  const auto expected = net.plain(x);
  auto session = fit(step, x, {.budget = 1_GiB});
  for (int i = 0; i < 3; ++i) {
    net.layers->zero_grad();
    session.backward(step, x);
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_EQ(session.last_step().known, 1U);
    expect_same(expected, net.gradients());
  }
}

TEST(SeveralPasses, AStepThatGoesBackwardItselfMaySkipThat) {
  Net net;
  const at::Tensor x = torch::randn({256, 256});
  const auto expected = net.plain(x);
  bool skips = false;
  const auto step = [&](const at::Tensor& batch) {
    at::Tensor loss = net(batch);
    if (skips) return at::Tensor();
    loss.backward();
    return loss;
  };
  auto session = fit(step, x, {.budget = 1_GiB});
  EXPECT_TRUE(session.steps_go_backward());
  for (const bool skip : {false, true, false, true}) {
    skips = skip;
    net.layers->zero_grad();
    EXPECT_EQ(session.backward(step, x).defined(), !skip);
    if (skip) {
      EXPECT_FALSE(net.layers->parameters()[0].grad().defined());
    } else {
      expect_same(expected, net.gradients());
    }
  }
  auto returns = fit(net, x, {.budget = 1_GiB});
  EXPECT_FALSE(returns.steps_go_backward());
  EXPECT_THAT(testing::fault([&] { returns.backward([&] { return net(x).detach(); }); }),
              HasSubstr("does not require a gradient"));
}

TEST(SeveralPasses, GoingBackwardTwiceThroughOneGraphIsRefused) {
  Net net;
  const auto step = [&](const at::Tensor& batch) {
    at::Tensor loss = net(batch);
    loss.backward({}, /*keep_graph=*/true);
    loss.backward();
    return loss;
  };
  const at::Tensor x = torch::randn({64, 256});
  auto session = fit(step, x, {.budget = 1_GiB});
  EXPECT_THAT(testing::fault([&] { session.backward(step, x); }), HasSubstr("a second time"));
}

}  // namespace
}  // namespace snug
