// AdamW against the formula in doubles, and the schedule at its corners.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/optim/adamw.h"
#include "snug/optim/schedule.h"

namespace snug::optim {
namespace {

TEST(AdamW, FollowsTheFormula) {
  torch::manual_seed(1);
  at::Tensor weight = torch::randn({5, 3}).requires_grad_(), bias = torch::randn({3}).requires_grad_();
  const AdamWOptions options{.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1};
  AdamW optimizer({weight, bias}, options);
  at::Tensor expected = weight.detach().to(at::kDouble), m = at::zeros_like(expected), v = at::zeros_like(expected);
  at::Tensor plain = bias.detach().to(at::kDouble), bm = at::zeros_like(plain), bv = at::zeros_like(plain);
  const double rate = 1e-2;
  const auto update = [&](at::Tensor& p, at::Tensor& first, at::Tensor& second, const at::Tensor& g, double decay,
                          int t) {
    p = p * (1 - rate * decay);
    first = options.beta1 * first + (1 - options.beta1) * g;
    second = options.beta2 * second + (1 - options.beta2) * g * g;
    const at::Tensor hat = first / (1 - std::pow(options.beta1, t));
    p = p - rate * hat / ((second / (1 - std::pow(options.beta2, t))).sqrt() + options.epsilon);
  };
  for (int t = 1; t <= 4; ++t) {
    weight.mutable_grad() = torch::randn({5, 3});
    bias.mutable_grad() = torch::randn({3});
    update(expected, m, v, weight.grad().to(at::kDouble), options.weight_decay, t);
    update(plain, bm, bv, bias.grad().to(at::kDouble), 0.0, t);  // not decayed
    optimizer.step(rate);
  }
  EXPECT_TRUE(at::allclose(weight.detach().to(at::kDouble), expected, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(bias.detach().to(at::kDouble), plain, 1e-5, 1e-6));
  optimizer.zero_grad();
  EXPECT_FALSE(weight.grad().defined());
}

TEST(AdamW, MakesItsStateAtOnceAndUnderItsTag) {
  auto& memory = memory::device_memory(c10::kCPU);
  const at::Tensor weight = torch::randn({256, 256}).requires_grad_();
  const auto before = memory.stats().by_tag[static_cast<std::size_t>(memory::Tag::Optimizer)];
  const AdamW optimizer({weight}, {});
  const auto after = memory.stats().by_tag[static_cast<std::size_t>(memory::Tag::Optimizer)];
  EXPECT_EQ(after - before, 2 * memory.rounded(256 * 256 * 4) + memory.rounded(4));
}

TEST(AdamW, ARehearsalChangesNothingButTheGradients) {
  torch::manual_seed(2);
  const at::Tensor weight = torch::randn({64, 64}).requires_grad_(), bias = torch::randn({64}).requires_grad_();
  AdamW optimizer({weight, bias}, {.weight_decay = 0.5});
  {
    const torch::NoGradGuard no_grad;
    bias[3] = -0.0F;
  }
  weight.mutable_grad() = torch::randn({64, 64});
  bias.mutable_grad() = torch::full({64}, std::numeric_limits<float>::quiet_NaN());
  const auto bits = [](const at::Tensor& t) { return t.detach().clone().view(at::kInt); };
  std::vector<at::Tensor> written = optimizer.state();
  written.push_back(weight);
  written.push_back(bias);
  std::vector<at::Tensor> before;
  for (const at::Tensor& t : written) before.push_back(bits(t));
  optimizer.rehearse();
  for (std::size_t i = 0; i < written.size(); ++i) EXPECT_TRUE(at::equal(bits(written[i]), before[i])) << i;
  EXPECT_EQ(weight.grad().abs().sum().item<float>(), 0);
  optimizer.step(1e-3);
  EXPECT_THROW(optimizer.rehearse(), std::logic_error);
}

TEST(ClipGradientNorm, ScalesToTheLimitAndNotBelow) {
  const at::Tensor p = torch::zeros({2}).requires_grad_();
  p.mutable_grad() = torch::tensor({3.0F, 4.0F});
  EXPECT_DOUBLE_EQ(clip_gradient_norm({p}, 10.0), 5.0);
  EXPECT_FLOAT_EQ(p.grad()[1].item<float>(), 4.0F);
  EXPECT_DOUBLE_EQ(clip_gradient_norm({p}, 1.0), 5.0);
  EXPECT_NEAR(p.grad().norm().item<double>(), 1.0, 1e-5);
  EXPECT_DOUBLE_EQ(clip_gradient_norm({torch::zeros({2}).requires_grad_()}, 1.0), 0.0);
}

TEST(WarmupCosine, RisesToThePeakAndEndsAtTheFraction) {
  const WarmupCosine schedule{.peak = 1.0, .warmup_steps = 4, .steps = 20, .final_fraction = 0.1};
  EXPECT_DOUBLE_EQ(schedule.at(0), 0.25);
  EXPECT_DOUBLE_EQ(schedule.at(3), 1.0);
  EXPECT_DOUBLE_EQ(schedule.at(4), 1.0);
  EXPECT_NEAR(schedule.at(19), 0.1, 1e-12);
  for (int step = 5; step < 20; ++step) EXPECT_LT(schedule.at(step), schedule.at(step - 1)) << step;
  EXPECT_DOUBLE_EQ((WarmupCosine{.peak = 2.0, .warmup_steps = 0, .steps = 1}).at(0), 2.0);
}

}  // namespace
}  // namespace snug::optim
