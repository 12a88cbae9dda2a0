// Checkpoints that call their function again.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "tests/equivalence/bitwise.h"
#include "tests/replay/rerun_cases.h"

namespace snug {
namespace {

using testing::kRerun;
using testing::kWithoutRandomState;
using testing::same_bits;

TEST(RerunCheckpoint, GivesThePlainGradients) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Dropout(0.3),
                            torch::nn::Linear(16, 4));
  const at::Tensor x = torch::randn({5, 8}, at::requires_grad());
  const auto run = [&](bool checkpointed) {
    net->zero_grad();
    x.mutable_grad() = at::Tensor();
    torch::manual_seed(7);
    const auto call = [&](const at::Tensor& in) { return net->forward(in); };
    const at::Tensor y = checkpointed ? checkpoint(kRerun, call, x) : call(x);
    const at::Tensor after = torch::rand({3});
    y.square().sum().backward();
    std::vector<at::Tensor> all{x.grad().clone(), y.detach(), after, torch::rand({3})};
    for (const auto& p : net->parameters()) all.push_back(p.grad().clone());
    return all;
  };
  const auto plain = run(false), other = run(true);
  for (std::size_t k = 0; k < plain.size(); ++k) EXPECT_TRUE(same_bits(plain[k], other[k])) << k;
}

TEST(RerunCheckpoint, HoldsNothingThatIsMadeInsideUntilBackward) {
  const at::Tensor x = torch::randn({1 << 16}, at::requires_grad());
  const Bytes before = testing::test_memory().stats().allocated;
  const at::Tensor y = checkpoint(
      kWithoutRandomState, [](const at::Tensor& t) { return t.sin().sin().sin().sin(); }, x);
  EXPECT_LE(testing::test_memory().stats().allocated - before, static_cast<Bytes>(y.nbytes()) + 4_KiB);
  y.sum().backward();
}

TEST(RerunCheckpoint, TakesAnyArgumentsAndGivesAnyResults) {
  const at::Tensor a = torch::randn({3}, at::requires_grad()), b = torch::randn({3}, at::requires_grad());
  struct Both {
    at::Tensor sum;
    std::string word;
  };
  const auto call = [](std::vector<at::Tensor> list, std::optional<at::Tensor> maybe, double scale,
                       const std::map<std::string, at::Tensor>& named, const std::string& word) {
    return Both{(list[0] * list[1]).sin() * scale + maybe.value_or(list[0]) * named.at("b"), word};
  };
  const auto gradients = [&](const Both& both) { return torch::autograd::grad({both.sum.sum()}, {a, b}); };
  const std::vector<at::Tensor> list{a, b};
  const std::map<std::string, at::Tensor> named{{"b", b}};
  const auto plain = gradients(call(list, std::nullopt, 0.5, named, "bar"));
  const Both both = checkpoint(kRerun, call, list, std::optional<at::Tensor>(), 0.5, named, std::string("bar"));
  EXPECT_EQ(both.word, "bar");
  const auto other = gradients(both);
  EXPECT_TRUE(same_bits(plain[0], other[0]));
  EXPECT_TRUE(same_bits(plain[1], other[1]));
}

TEST(RerunCheckpoint, IsWrittenAsTheDocumentationHasIt) {
  const at::Tensor x = torch::rand({3}, at::requires_grad());
  const auto function = [](const at::Tensor& t, int times, const std::string&) { return t.sin() * times; };
  EXPECT_NO_THROW(snug::checkpoint({.mode = snug::Rerun{}}, function, x, 3, "any argument").sum().backward());
  torch::nn::Sequential layers(torch::nn::Linear(3, 3), torch::nn::Tanh(), torch::nn::Linear(3, 3), torch::nn::Tanh());
  EXPECT_NO_THROW(
      snug::checkpoint_sequential(*layers, 4, x, {.mode = snug::Rerun{.early_stop = false}}).sum().backward());
}

TEST(RerunCheckpoint, TakesArraysAndRefusesWhatCannotBeCopied) {
  const at::Tensor x = torch::rand({3}, at::requires_grad());
  const auto named = [](const at::Tensor& t, const std::string& name) { return name == "sine" ? t.sin() : t.cos(); };
  EXPECT_NO_THROW(checkpoint(kRerun, named, x, "sine").sum().backward());
  const auto owns = [held = std::make_unique<int>(3)](const at::Tensor& t) { return t * *held; };
  EXPECT_THROW(checkpoint(kRerun, owns, x), UsageError);
  EXPECT_NO_THROW(checkpoint(CheckpointOptions{}, owns, x).sum().backward());
}

TEST(RerunCheckpoint, AFunctionThatChangesItselfBeginsAnew) {
  const at::Tensor x = torch::rand({3}, at::requires_grad());
  const at::Tensor y =
      checkpoint(
          kRerun, [calls = 0](const at::Tensor& t) mutable { return (t * static_cast<double>(++calls)).sin(); }, x)
          .sum();
  const at::Tensor first = torch::autograd::grad({y}, {x}, {}, true)[0];
  EXPECT_TRUE(same_bits(first, torch::autograd::grad({y}, {x})[0]));
}

TEST(RerunCheckpoint, RestoresAutocast) {
  const at::Tensor x = torch::randn({4, 8}, at::requires_grad()), w = torch::randn({8, 8}, at::requires_grad());
  const auto run = [&](bool checkpointed) {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    const auto call = [&](const at::Tensor& t) { return torch::linear(torch::linear(t, w), w).exp(); };
    const at::Tensor y = checkpointed ? checkpoint(kRerun, call, x) : call(x);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    auto gradients = torch::autograd::grad({y.sum()}, {x, w});
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    return gradients;
  };
  const auto plain = run(false), other = run(true);
  EXPECT_TRUE(same_bits(plain[0], other[0]));
  EXPECT_TRUE(same_bits(plain[1], other[1]));
}

TEST(RerunCheckpoint, AnExceptionInTheRerunLeavesEverythingAsBefore) {
  auto calls = std::make_shared<int>(0);
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  const auto call = [calls](const at::Tensor& t) {
    const at::Tensor y = torch::dropout(t, 0.5, true).sin();
    if (++*calls == 2) throw std::runtime_error("not this time");
    return y.sin();
  };
  const Bytes before = testing::test_memory().stats().allocated;
  {
    const at::Tensor y = checkpoint(kRerun, call, x).sum();
    const at::Tensor random = at::globalContext().defaultGenerator(at::kCPU).get_state();
    EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, true), std::runtime_error);
    EXPECT_TRUE(same_bits(random, at::globalContext().defaultGenerator(at::kCPU).get_state()));
    EXPECT_TRUE(at::GradMode::is_enabled());
    // The graph is still good.
    EXPECT_NO_THROW(torch::autograd::grad({y}, {x}));
  }
  EXPECT_EQ(testing::test_memory().stats().allocated, before);
}

TEST(RerunCheckpoint, IsAPlainCallWithoutGradients) {
  auto calls = std::make_shared<int>(0);
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::randn({4}, at::requires_grad());
  EXPECT_FALSE(checkpoint(
                   kRerun, [calls](const at::Tensor& t) { return ++*calls, t.sin(); }, x)
                   .requires_grad());
  EXPECT_EQ(*calls, 1);
}

TEST(RerunCheckpoint, RunsWhatComputesOutsideOfAten) {
  // A buffer that a loop of its own fills: opaque to a recorder, but the function can be called again.
  const at::Tensor x = torch::randn({1 << 16}, at::requires_grad());
  const auto raw = [](const at::Tensor& t) {
    at::Tensor factors = torch::empty({t.numel()});
    float* to = factors.mutable_data_ptr<float>();
    for (std::int64_t k = 0; k < t.numel(); ++k) to[k] = static_cast<float>(k % 7);
    return t * factors;
  };
  const at::Tensor plain = torch::autograd::grad({raw(x).sum()}, {x})[0];
  const Bytes before = testing::test_memory().stats().allocated;
  const at::Tensor y = checkpoint(kWithoutRandomState, raw, x);
  EXPECT_LE(testing::test_memory().stats().allocated - before, static_cast<Bytes>(y.nbytes()) + 4_KiB);
  EXPECT_TRUE(same_bits(plain, torch::autograd::grad({y.sum()}, {x})[0]));
}

}  // namespace
}  // namespace snug
