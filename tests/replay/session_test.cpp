// fit and Session: budgets that hold, errors that name their parts, and steps that are not the recorded one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "snug/memory/held_limit.h"
#include "snug/record/recording.h"
#include "snug/snug.h"
#include "tests/base/fault.h"
#include "tests/equivalence/bitwise.h"
#include "tests/replay/layers_net.h"

namespace snug {
namespace {

using testing::expect_same;
using ::testing::HasSubstr;
using testing::Net;
using testing::same_bits;
using testing::test_memory;
using testing::unplanned_peak;

TEST(Fit, KeepsUnderTheBudgetWithTheSameGradients) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const Bytes budget = unplanned_peak(net, x) * 7 / 10;
  auto session = fit(net, x, {.budget = budget});
  test_memory().reset_peak();
  for (int i = 0; i < 3; ++i) {
    net.layers->zero_grad();
    session.backward(net, x);
  }
  EXPECT_LE(test_memory().stats().mapped_peak, budget);
  EXPECT_GT(session.last_step().replayed_ops, 0);
  expect_same(expected, net.gradients());
}

TEST(Fit, LeavesNoTrace) {
  Net net;
  const at::Tensor x = torch::randn({64, 256});
  net(x).backward();
  const auto before = net.gradients();
  torch::manual_seed(11);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(11);
  auto session = fit([&](const at::Tensor& t) { return net(at::dropout(t, 0.5, true)); }, x, {.budget = 1_GiB});
  EXPECT_TRUE(same_bits(expected, torch::rand({4})));
  expect_same(before, net.gradients());
}

/// Makes its weight's gradient in forward, and hands it on as it was saved: the memory becomes the gradient's.
struct HandsOn : torch::autograd::Function<HandsOn> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({weight * 2});
    return x.sum() + weight.sum();  // little beside what is saved, so that backward has the peak
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& /*gradients*/) {
    const at::Tensor saved = context->get_saved_variables()[0];
    return {at::ones({2048, 256}), saved};
  }
};

TEST(Fit, CountsWhatABackwardHandsOnAsItWasSaved) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256}), weight = torch::randn({2048, 1024}).requires_grad_();
  const auto step = [&](const at::Tensor& t) { return HandsOn::apply(net.layers->forward(t), weight); };
  const auto run = [&](Bytes budget) {
    auto session = fit(step, x, {.budget = budget});
    Bytes peak = 0;
    for (int i = 0; i < 2; ++i) {
      net.layers->zero_grad();
      weight.mutable_grad() = at::Tensor();
      test_memory().reset_peak();
      session.backward(step, x);
      peak = std::max(peak, test_memory().stats().allocated_peak);
    }
    net.layers->zero_grad();
    weight.mutable_grad() = at::Tensor();
    EXPECT_LE(peak, session.plan().predicted_peak);
    EXPECT_GE(peak, session.plan().predicted_peak - 2_KiB);
    return std::pair(session.plan().unplanned_peak, session.last_step().replayed_ops);
  };
  const auto [unplanned, none] = run(4_GiB);
  EXPECT_EQ(none, 0);
  EXPECT_GT(run(unplanned * 8 / 10).second, 0);
}

/// Differentiates in backward for itself, as reentrant checkpoints do: its weight is not in the loss's own graph.
struct HidesItsWeight : torch::autograd::Function<HidesItsWeight> {
  static at::Tensor run(const at::Tensor& x, const at::Tensor& weight) { return at::tanh(x.matmul(weight)); }
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            c10::intrusive_ptr<c10::TensorImpl> hidden) {
    const at::Tensor weight(hidden);
    context->saved_data["weight"] = weight;
    context->save_for_backward({x});
    return run(x, weight);
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext* context,
                                          std::vector<at::Tensor> gradients) {
    const at::AutoGradMode with_gradients(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    run(x, context->saved_data["weight"].toTensor()).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

TEST(Fit, LeavesGradientsThatAFunctionHides) {
  torch::manual_seed(0);
  const at::Tensor x = torch::randn({32, 16}).requires_grad_(), weight = torch::randn({16, 16}).requires_grad_();
  const auto step = [&](const at::Tensor& in) { return HidesItsWeight::apply(in, weight.getIntrusivePtr()).sum(); };
  step(x).backward();
  const at::Tensor expected = std::exchange(weight.mutable_grad(), at::Tensor());
  x.mutable_grad() = at::Tensor();
  auto session = fit(step, x, {.budget = test_memory().stats().allocated + 64_MiB});
  EXPECT_FALSE(weight.grad().defined());
  session.backward(step, x);
  EXPECT_TRUE(same_bits(expected, weight.grad()));
}

TEST(Fit, HoldsNoActivationThatGradientsAreAskedFor) {
  Net net;
  const at::Tensor x = torch::randn({256, 256});
  const auto step = [&](const at::Tensor& in) { return net((in * 2).requires_grad_()); };
  const Bytes before = test_memory().stats().allocated;
  const auto session = fit(step, x, {.budget = before + 64_MiB});
  EXPECT_EQ(test_memory().stats().allocated, before);
}

TEST(Fit, DoesNotFitNamesTheFloorAndItsParts) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto limit = test_memory().stats().limit;
  try {
    fit(net, x, {.budget = 6_MiB});
    FAIL() << "no error";
  } catch (const DoesNotFit& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_EQ(error.floor().budget, 6_MiB);
    EXPECT_GT(error.floor().floor, 6_MiB);
    EXPECT_THAT(error.what(), HasSubstr(format_bytes(error.floor().floor)));
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
  EXPECT_EQ(test_memory().stats().limit, limit) << "the limit is lifted again";
  auto session = fit(net, x, {.budget = 1_GiB});  // the process goes on
  session.backward(net, x);
}

TEST(Fit, TheNamedFloorIsEnough) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const auto recorded = replay::record_step([&] { return net(x); }, test_memory());
  Bytes floor = 0;
  try {
    plan::make_plan(recorded.graph, "optimal", plan::Budget::for_limit(6_MiB));
  } catch (const DoesNotFit& error) {
    floor = error.floor().floor;
  }
  ASSERT_GT(floor, 0);
  Session session(recorded, "optimal", plan::Budget::for_limit(floor), test_memory());
  session.backward(net, x);
  expect_same(expected, net.gradients());
}

TEST(Fit, RecordsWithoutALimitBesideOneThatIsHeld) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const Bytes limit = test_memory().stats().allocated + 64_KiB;
  const memory::HeldLimit held(test_memory(), limit);
  EXPECT_THROW((void)replay::record_step([&] { return net(x); }, test_memory()), OutOfBudget);
  EXPECT_FALSE(replay::record_step_within(
                   std::nullopt, [&] { return net(x); }, test_memory())
                   .graph.ops.empty());
  EXPECT_EQ(test_memory().stats().limit, limit);
}

TEST(Fit, RefusesABudgetThatIsNotPositive) {
  Net net;
  EXPECT_THROW(fit(net, torch::randn({4, 256}), {.budget = 0}), UsageError);
  EXPECT_THROW(fit(net, torch::randn({4, 256}), {.budget = -5}), UsageError);
}

TEST(Fit, NamesTheDeviceThatItHasNoMemoryOf) {
  Net net;
  const std::string refusal = testing::fault([&] {
    (void)fit(net, torch::randn({4, 256}), {.budget = 1_GiB, .device = c10::Device(c10::kXLA, 3)});
  });
  EXPECT_THAT(refusal, HasSubstr("no backend for xla:3"));
}

TEST(Fit, RefusesAStepWithoutALoss) {
  const at::Tensor x = torch::ones({4});
  EXPECT_THROW(fit([](const at::Tensor&) { return at::Tensor(); }, x, {.budget = 1_GiB}), UsageError);
  EXPECT_THROW(fit([](const at::Tensor& t) { return t * 2; }, x, {.budget = 1_GiB}), UsageError);
  EXPECT_THROW(fit([](const at::Tensor& t) { return t.sum(); }, x, {.budget = 1_GiB}), UsageError);
}

TEST(Session, RunsAnotherShapeUnderPressureAndSaysSo) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256}), other = torch::randn({1792, 256});
  const Bytes budget = unplanned_peak(net, x) * 7 / 10;
  const auto expected = net.plain(other);
  auto session = fit(net, x, {.budget = budget});
  session.backward(net, x);
  net.layers->zero_grad();
  test_memory().reset_peak();
  session.backward(net, other);
  EXPECT_FALSE(session.last_step().followed_plan);
  EXPECT_THAT(session.last_step().divergence, HasSubstr("operator 0"));
  EXPECT_LE(test_memory().stats().mapped_peak, budget);
  EXPECT_GT(session.last_step().evictions, 0);
  expect_same(expected, net.gradients());
}

TEST(Session, EvictionAloneHoldsTheCap) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const auto recorded = replay::record_step([&] { return net(x); }, test_memory());
  const Bytes peak = plan::make_plan(recorded.graph, "none", std::nullopt).predicted_peak;
  for (const int percent : {90, 80, 70}) {
    Session session(recorded, "none", std::nullopt, test_memory());  // a plan that keeps everything
    const Bytes limit = peak * percent / 100;
    net.layers->zero_grad();
    test_memory().set_limit(limit);
    test_memory().reset_peak();
    session.backward(net, x);
    EXPECT_LE(test_memory().stats().mapped_peak, limit);
    test_memory().set_limit(std::nullopt);
    EXPECT_GT(session.last_step().evictions, 0) << percent;
    expect_same(expected, net.gradients());
  }
}

struct FailsInBackward : torch::autograd::Function<FailsInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("on the way back");
  }
};

/// The engine has other branches in its queue then, with their graphs and what those saved.
TEST(Session, AnExceptionInBackwardGivesAllMemoryBack) {
  auto& memory = testing::test_memory();
  const at::Tensor x = torch::randn({64, 64}, at::requires_grad());
  bool fails = false;
  const auto step = [&] {
    at::Tensor sum = x.sin().sum();
    for (int i = 0; i < 4; ++i) sum = sum + x.sin().exp().sum();
    const at::Tensor last = x.cos().exp();
    return sum + (fails ? FailsInBackward::apply(last) : last).sum();
  };
  Session session(replay::record_step(step, memory), "none", std::nullopt, memory);
  session.backward(step);
  x.mutable_grad() = at::Tensor();
  const Bytes before = memory.stats().allocated;
  fails = true;
  EXPECT_THROW(session.backward(step), std::runtime_error);
  x.mutable_grad() = at::Tensor();
  EXPECT_EQ(memory.stats().allocated, before);
  fails = false;
  EXPECT_NO_THROW(session.backward(step));
}

TEST(Session, OutOfBudgetNamesTheOperatorAndTheProcessGoesOn) {
  Net net;
  const at::Tensor x = torch::randn({256, 256});
  const Bytes before = test_memory().stats().allocated;
  auto session = fit(net, x, {.budget = before + 16_MiB});
  const at::Tensor wide = torch::randn({2048, 256});
  try {
    session.backward([&] { return at::mm(wide, at::ones({256, 8192})).sum() * net.layers->parameters()[0].sum(); });
    FAIL() << "no error";
  } catch (const OutOfBudget& error) {
    EXPECT_THAT(error.details().operation, HasSubstr("aten::"));
    EXPECT_GT(error.details().requested, 16_MiB);
    EXPECT_FALSE(error.details().largest.empty());
  }
  session.backward(net, x);
  EXPECT_TRUE(session.last_step().followed_plan);
}

TEST(Session, TagsGradientsAndActivations) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  auto session = fit(net, x, {.budget = 1_GiB});
  net.layers->zero_grad();
  test_memory().reset_peak();
  session.backward(net, x);
  const auto stats = test_memory().stats();
  const auto tag = [](memory::Tag t) { return static_cast<std::size_t>(t); };
  Bytes weights = 0;
  for (const auto& p : net.layers->parameters()) weights += test_memory().rounded(static_cast<Bytes>(p.nbytes()));
  EXPECT_EQ(stats.by_tag[tag(memory::Tag::Weights)], weights);
  EXPECT_EQ(stats.by_tag[tag(memory::Tag::Gradients)], weights);
  EXPECT_GE(stats.peak_by_tag[tag(memory::Tag::Activations)], test_memory().rounded(2048 * 256 * 4) * 16);
}

TEST(Session, PlansAgainWhenOptimizerStateAppears) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  torch::optim::AdamW optimizer(net.layers->parameters());  // its state comes with the first step
  const Bytes budget = unplanned_peak(net, x) * 8 / 10;
  auto session = fit(net, x, {.budget = budget});
  test_memory().reset_peak();
  session.backward(net, x);
  const Bytes before = session.graph().static_bytes;
  const std::int64_t replayed = session.last_step().replayed_ops;
  optimizer.step();
  optimizer.zero_grad();
  session.backward(net, x);
  EXPECT_TRUE(session.last_step().followed_plan);
  Bytes weights = 0;
  for (const at::Tensor& p : net.layers->parameters()) weights += static_cast<Bytes>(p.nbytes());
  EXPECT_GE(session.graph().static_bytes, before + 2 * weights) << "with two moments each";
  EXPECT_GT(session.last_step().replayed_ops, replayed) << "there is less room for what is kept";
  EXPECT_LE(session.plan().predicted_peak, budget);
  EXPECT_LE(test_memory().stats().mapped_peak, budget);
}

TEST(Session, WhatFollowsTheBackwardPassOfAnUnknownStepIsNoPartOfIt) {
  Net net;
  bool validates = false;
  const auto step = [&](const at::Tensor& x) {
    at::Tensor loss = net(x);
    loss.backward();
    if (validates) {
      const torch::NoGradGuard no_grad;
      torch::ones({16 << 20}).exp_();  // 64 MiB
    }
    return loss;
  };
  auto session = fit(step, torch::randn({256, 256}), {.budget = test_memory().stats().allocated + 256_MiB});
  net.layers->zero_grad();
  session.backward(step, torch::randn({128, 256}));  // steps vary
  validates = true;
  for (const int rows : {192, 64}) {
    for (const bool again : {false, true}) {
      net.layers->zero_grad();
      session.backward(step, torch::randn({rows, 256}));
      ASSERT_EQ(session.last_step().planned_anew, again);
    }
    EXPECT_LT(session.plan().unplanned_peak, session.graph().static_bytes + 32_MiB);
  }
}

TEST(Session, ARefusalThatTheStepHasOvercomeIsNone) {
  Net net;
  const at::Tensor x = torch::randn({2048, 256});
  const auto expected = net.plain(x);
  const Bytes budget = unplanned_peak(net, x) * 7 / 10;
  auto session = fit(net, x, {.budget = budget});
  at::Tensor in_the_way = torch::ones({budget / 4 - test_memory().stats().allocated / 4 - (1 << 18)});
  bool refused = false;
  const auto step = [&] {
    try {
      torch::ones({1});
    } catch (const DoesNotFit&) {
      refused = true;
      in_the_way = at::Tensor();
    }
    return net(x);
  };
  const at::Tensor loss = session.backward(step);
  EXPECT_TRUE(refused);
  EXPECT_TRUE(loss.defined());
  expect_same(expected, net.gradients());
}

}  // namespace
}  // namespace snug
