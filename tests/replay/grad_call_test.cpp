// Steps whose backward pass is a call of torch::autograd::grad(), as functional optimizers have it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "snug/base/errors.h"
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

/// A step that puts the gradients of grad() in place.
struct ByGrad {
  at::Tensor operator()(const at::Tensor& x) {
    const at::Tensor loss = net(x);
    const auto parameters = net.layers->parameters();
    const auto gradients = torch::autograd::grad({loss}, parameters);
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
    return loss.detach();
  }
  Net& net;
};

TEST(GradCall, IsTheBackwardPassOfAStepThatHasNoOther) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const Bytes budget = unplanned_peak(net, x) * 7 / 10;
  auto session = fit(ByGrad{net}, x, {.budget = budget});
  for (const at::Tensor& p : net.layers->parameters()) EXPECT_FALSE(p.grad().defined()) << "no trace";
  test_memory().reset_peak();
  for (int i = 0; i < 3; ++i) {
    net.layers->zero_grad();
    session.backward(ByGrad{net}, x);
    expect_same(expected, net.gradients());
    EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
    EXPECT_GT(session.last_step().replayed_ops, 0);
    EXPECT_EQ(session.last_step().evictions, 0);
  }
  EXPECT_LE(test_memory().stats().mapped_peak, budget);
}

TEST(GradCall, InFrontOfABackwardPassIsAPartOfTheForwardPass) {
  Net net;
  const at::Tensor x = torch::randn({512, 256}).requires_grad_();
  const auto step = [&](const at::Tensor& batch) {
    const at::Tensor loss = net(batch);
    const at::Tensor slope = torch::autograd::grad({loss}, {batch}, {}, true, /*create_graph=*/true)[0];
    return loss + slope.square().sum();
  };
  step(x).backward();
  const auto expected = net.gradients();
  net.layers->zero_grad();
  x.mutable_grad() = at::Tensor();
  auto session = fit(step, x, {.budget = 64_MiB});
  session.backward(step, x);
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
  expect_same(expected, net.gradients());
}

TEST(GradCall, IsFoundByTheFirstStepWhereThereIsNoSample) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  Session session = fit({.budget = unplanned_peak(net, x) * 8 / 10, .device = testing::test_device()});
  for (int i = 0; i < 3; ++i) {
    net.layers->zero_grad();
    const at::Tensor loss = session.backward(ByGrad{net}, x);
    EXPECT_TRUE(loss.defined());
    expect_same(expected, net.gradients());
    EXPECT_EQ(session.last_step().planned_anew, i == 1);
  }
  EXPECT_TRUE(session.last_step().followed_plan) << session.last_step().divergence;
}

TEST(GradCall, ABackwardPassInAnotherThreadIsNamed) {
  Net net;
  const auto step = [&](const at::Tensor& x) {
    at::Tensor loss = net(x);
    std::thread([&] { loss.backward(); }).join();
    return loss;
  };
  EXPECT_THAT(testing::fault([&] {
                (void)fit(step, torch::randn({64, 256}), {.budget = 1_GiB});
              }),
              HasSubstr("where another thread went backward"));
}

}  // namespace
}  // namespace snug
