#include "snug/ops/linear_cross_entropy.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/models/autocast.h"
#include "snug/replay/region.h"
#include "tests/equivalence/bitwise.h"
#include "tests/ops/packed.h"

namespace snug::ops {
namespace {

using snug::testing::plain;
using snug::testing::random_packed;
using snug::testing::same_bits;

constexpr std::int64_t kWidth = 64, kVocabulary = 50000;  // 167 rows of logits at once
constexpr std::int64_t kRows = 400;                       // in three groups

struct Inputs {
  at::Tensor x = torch::randn({2, kRows / 2, kWidth});
  at::Tensor targets = torch::randint(0, kVocabulary, {2, kRows / 2});
  Inputs() { targets[0].narrow(0, 10, 30).fill_(-100); }
};

at::Tensor reference(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(torch::linear(x, weight).to(at::kFloat).flatten(0, 1), targets.flatten());
}

/// Sums of 400 losses and of 50,000 products, in another order.
void expect_close(const at::Tensor& found, const at::Tensor& expected, double relative = 1e-5) {
  EXPECT_LT((found - expected).abs().max().item<double>(), relative * expected.abs().max().item<double>());
}

TEST(LinearCrossEntropy, IsThatOfTheLogits) {
  torch::manual_seed(1);
  const Inputs in;
  const at::Tensor weight = torch::randn({kVocabulary, kWidth}).mul_(0.1);
  const at::Tensor x = in.x.clone().requires_grad_(), w = weight.clone().requires_grad_();
  const at::Tensor same_x = in.x.clone().requires_grad_(), same_w = weight.clone().requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, w, in.targets), expected = reference(same_x, same_w, in.targets);
  expect_close(loss, expected, 1e-6);
  (loss * 3).backward();
  (expected * 3).backward();
  expect_close(x.grad(), same_x.grad());
  expect_close(w.grad(), same_w.grad());
  EXPECT_EQ(x.grad()[0][15].abs().max().item<double>(), 0);  // its target does not count
}

TEST(LinearCrossEntropy, AddsABias) {
  torch::manual_seed(6);
  const Inputs in;
  const at::Tensor weight = torch::randn({kVocabulary, kWidth}).mul_(0.1), bias = torch::randn({kVocabulary});
  const at::Tensor same_x = in.x.clone().requires_grad_(), same_w = weight.clone().requires_grad_();
  const at::Tensor same_b = bias.clone().requires_grad_();
  const at::Tensor expected =
      torch::nn::functional::cross_entropy(torch::linear(same_x, same_w, same_b).flatten(0, 1), in.targets.flatten());
  (expected * 3).backward();
  for (const bool weight_trains : {true, false}) {
    const at::Tensor x = in.x.clone().requires_grad_(), b = bias.clone().requires_grad_();
    const at::Tensor w = weight.clone().requires_grad_(weight_trains);
    const at::Tensor loss = linear_cross_entropy(x, w, in.targets, {.bias = b});
    expect_close(loss, expected, 1e-6);
    (loss * 3).backward();
    expect_close(x.grad(), same_x.grad());
    expect_close(b.grad(), same_b.grad());
    EXPECT_EQ(w.grad().defined(), weight_trains);
    if (weight_trains) expect_close(w.grad(), same_w.grad());
  }
  EXPECT_THROW(linear_cross_entropy(in.x, weight, in.targets, {.bias = torch::randn({3})}), Error);
}

TEST(LinearCrossEntropy, AScaleChangesNoBitOfALossThatIsScaledByIt) {
  torch::manual_seed(7);
  const Inputs in;
  const at::Tensor weight = torch::randn({kVocabulary, kWidth}).mul_(0.1);
  const auto gradients = [&](const at::Tensor& kept_times, double loss_times) {
    const at::Tensor x = in.x.clone().requires_grad_(), w = weight.clone().requires_grad_();
    const at::Tensor scale = kept_times.defined() ? kept_times.clone() : at::Tensor();
    const at::Tensor loss = linear_cross_entropy(x, w, in.targets, {.scale = scale});
    if (scale.defined()) scale.fill_(3);  // as a scaler does; the step has its own
    (loss * loss_times).backward();
    return std::pair{x.grad(), w.grad()};
  };
  const auto [of_x, of_w] = gradients({}, 65536);
  for (const double scale : {65536.0, 16.0}) {
    const auto [x, w] = gradients(at::full({}, scale), 65536);
    EXPECT_TRUE(at::equal(x, of_x));
    EXPECT_TRUE(at::equal(w, of_w));
  }
  EXPECT_THROW(linear_cross_entropy(in.x, weight, in.targets, {.scale = at::ones({2})}), Error);
}

TEST(LinearCrossEntropy, GradientsInFp16DoNotVanishUnderAScale) {
  torch::manual_seed(8);
  const Inputs in;
  const at::Tensor weight = torch::randn({kVocabulary, kWidth}).mul_(1e-4), x16 = in.x.to(at::kHalf);
  const auto zeros = [&](const at::Tensor& scale) {
    const at::Tensor x = x16.clone().requires_grad_();
    const at::Tensor loss = linear_cross_entropy(x, weight.to(at::kHalf), in.targets, {.scale = scale});
    (loss * 65536).backward();
    return x.grad()[1].eq(0).to(at::kFloat).mean().item<double>();
  };
  EXPECT_GT(zeros({}), 0.05);
  EXPECT_LT(zeros(at::full({}, 65536)), 0.001);
}

TEST(LinearCrossEntropy, TakesAPackedMatrix) {
  torch::manual_seed(2);
  const Inputs in;
  const PackedMatrix matrix = random_packed(kVocabulary, kWidth);
  const at::Tensor x = in.x.clone().requires_grad_(), same = in.x.clone().requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, matrix, in.targets);
  const at::Tensor expected = reference(same, plain(matrix), in.targets);
  expect_close(loss, expected, 1e-6);
  loss.backward();
  expected.backward();
  expect_close(x.grad(), same.grad());
}

TEST(LinearCrossEntropy, HasTheTypesOfAutocast) {
  torch::manual_seed(3);
  const Inputs in;
  const at::Tensor weight = torch::randn({kVocabulary, kWidth}).mul_(0.1);
  const at::Tensor x = in.x.clone().requires_grad_(), w = weight.clone().requires_grad_();
  const at::Tensor same_x = in.x.clone().requires_grad_(), same_w = weight.clone().requires_grad_();
  at::Tensor loss, expected;
  {
    const models::AutocastScope autocast(at::kBFloat16, c10::kCPU);
    loss = linear_cross_entropy(x, w, in.targets);
    expected = reference(same_x, same_w, in.targets);
  }
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  expect_close(loss, expected, 1e-3);
  loss.backward();
  expected.backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
  expect_close(x.grad(), same_x.grad(), 2e-2);  // bf16 has 8 bits
  expect_close(w.grad(), same_w.grad(), 2e-2);
}

TEST(LinearCrossEntropy, NeverHasAllLogits) {
  torch::manual_seed(4);
  const Inputs in;
  const at::Tensor weight = torch::randn({kVocabulary, kWidth});
  const at::Tensor x = in.x.clone().requires_grad_();
  auto& memory = memory::device_memory(c10::kCPU);
  memory.reset_peak();
  const Bytes before = memory.stats().allocated;
  linear_cross_entropy(x, weight, in.targets).backward();
  const Bytes taken = memory.stats().allocated_peak - before;
  EXPECT_LT(taken, 34_MiB);
  EXPECT_GT(kRows * kVocabulary * 4, 2 * taken);
}

/// What forward and backward take at once beside x, the weight and their gradients.
Bytes taken_beside_gradients(std::int64_t vocabulary, bool bias, std::optional<at::ScalarType> compute) {
  const at::Tensor x = torch::randn({16, 256}).requires_grad_();
  const at::Tensor w = torch::randn({vocabulary, 256}).requires_grad_();
  const at::Tensor b = bias ? torch::randn({vocabulary}).requires_grad_() : at::Tensor();
  const at::Tensor targets = torch::randint(0, vocabulary, {16});
  auto& memory = memory::device_memory(c10::kCPU);
  memory.reset_peak();
  const Bytes before = memory.stats().allocated;
  {
    const models::AutocastScope autocast(compute, c10::kCPU);
    (linear_cross_entropy(x, w, targets, {.tile = {.logits = 1_MiB}, .bias = b}) * 3).backward();
  }
  const Bytes gradients = static_cast<Bytes>(x.nbytes() + w.nbytes() + (bias ? b.nbytes() : 0));
  return memory.stats().allocated_peak - before - gradients;
}

TEST(LinearCrossEntropy, MakesTheGradientOfTheWeightOnce) {
  torch::manual_seed(9);
  for (const bool bias : {false, true}) {
    for (const std::int64_t vocabulary : {20'000, 60'000}) {  // a gradient of 19 and of 58 MiB
      EXPECT_LT(taken_beside_gradients(vocabulary, bias, std::nullopt), 2_MiB) << vocabulary;
      // The weight as it is multiplied, and a tile of products.
      const Bytes cast = vocabulary * 256 * 2;
      EXPECT_LT(taken_beside_gradients(vocabulary, bias, at::kBFloat16), cast + 18_MiB) << vocabulary;
    }
  }
}

TEST(LinearCrossEntropy, GoesBackAgainWhereTheGraphIsKept) {
  torch::manual_seed(10);
  const Inputs in;
  const at::Tensor x = in.x.clone().requires_grad_(),
                   w = torch::randn({kVocabulary, kWidth}).mul_(0.1).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, w, in.targets) * 3;
  const auto first = torch::autograd::grad({loss}, {x, w}, {}, /*retain_graph=*/true);
  const auto second = torch::autograd::grad({loss}, {x, w});
  for (std::size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(first[i], second[i]));
}

TEST(LinearCrossEntropy, HasAsManyLogitsAsItIsTold) {
  torch::manual_seed(4);
  const Inputs in;
  const at::Tensor weight = torch::randn({kVocabulary, kWidth});
  auto& memory = memory::device_memory(c10::kCPU);
  const auto run = [&](const LossTile& tile) {
    const at::Tensor x = in.x.clone().requires_grad_();
    memory.reset_peak();
    const Bytes before = memory.stats().allocated;
    const at::Tensor loss = linear_cross_entropy(x, weight, in.targets, {.tile = tile});
    return std::pair(memory.stats().allocated_peak - before, loss.detach());
  };
  const auto [large, of_large] = run({});
  const auto [small, of_small] = run({.logits = 4_MiB});
  const auto [smallest, of_smallest] = run({.logits = 1});  // one row
  EXPECT_GT(large, 25_MiB);                                 // a third of all rows
  EXPECT_LT(small, 6_MiB);
  EXPECT_LT(smallest, 1_MiB);
  expect_close(of_small, of_large, 1e-6);
  expect_close(of_smallest, of_large, 1e-6);
}

TEST(LinearCrossEntropy, HasGroupsOfEquallyManyRows) {
  torch::manual_seed(4);
  constexpr Bytes kRowBytes = kVocabulary * 4;
  const at::Tensor weight = torch::randn({kVocabulary, kWidth});
  auto& memory = memory::device_memory(c10::kCPU);
  const auto room_of = [&](std::int64_t rows, Bytes tile) {
    const at::Tensor x = torch::randn({rows, kWidth}), targets = torch::randint(0, kVocabulary, {rows});
    memory.reset_peak();
    const Bytes before = memory.stats().allocated;
    linear_cross_entropy(x, weight, targets, {.tile = {.logits = tile}});
    return (memory.stats().allocated_peak - before) / kRowBytes;
  };
  EXPECT_EQ(room_of(12, 11 * kRowBytes), 6);          // two times 6, not 11 and 1
  EXPECT_EQ(room_of(12, 4 * kRowBytes), 4);           // all of the tile
  EXPECT_EQ(room_of(10, 10 * kRowBytes / 3 + 1), 4);  // three groups, the tile's and the row that it ends in
}

TEST(LinearCrossEntropy, MakesNoGradientsWithoutGraph) {
  const Inputs in;
  const at::Tensor weight = torch::randn({kVocabulary, kWidth}).requires_grad_();
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(linear_cross_entropy(in.x, weight, in.targets).requires_grad());
}

TEST(LinearCrossEntropy, IsNanWhenNoTargetCounts) {
  const at::Tensor x = torch::randn({2, 3, 8}).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, torch::randn({10, 8}), torch::full({2, 3}, -100, torch::kLong));
  EXPECT_TRUE(std::isnan(loss.item<double>()));
  loss.backward();
  EXPECT_EQ(x.grad().abs().max().item<double>(), 0);
}

TEST(LinearCrossEntropy, IsDifferentiableOnce) {
  const at::Tensor x = torch::randn({1, 3, 8}).requires_grad_();
  const at::Tensor loss = linear_cross_entropy(x, torch::randn({10, 8}), torch::tensor({{1, 2, 3}}));
  EXPECT_ANY_THROW(torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true));
  EXPECT_TRUE(torch::autograd::grad({loss}, {x})[0].defined());
}

TEST(LinearCrossEntropy, RefusesTargetsOutsideOfTheVocabulary) {
  try {
    linear_cross_entropy(torch::randn({2, 2, 8}), torch::randn({10, 8}), torch::tensor({{3, 1}, {10, -100}}));
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "linear cross-entropy: target 10 at position 2 is not in [0, 10), and not -100, which does not count");
  }
  EXPECT_THROW(linear_cross_entropy(torch::randn({1, 2, 8}), torch::randn({10, 8}), torch::tensor({{3, 1, 2}})), Error);
}

TEST(LinearCrossEntropy, HasSmoothingTermsAndAnotherIgnoredTarget) {
  torch::manual_seed(9);
  const at::Tensor x = torch::randn({30, 8}, at::kDouble), w = torch::randn({5000, 8}, at::kDouble);
  at::Tensor targets = torch::randint(0, 5000, {30});
  targets.narrow(0, 3, 4).fill_(7);
  const auto plain = [&](const at::Tensor& a, const at::Tensor& b) {
    const auto options = torch::nn::functional::CrossEntropyFuncOptions().ignore_index(7).label_smoothing(0.3);
    return torch::nn::functional::cross_entropy(torch::linear(a, b), targets, options);
  };
  const auto tiled = [&](const at::Tensor& a, const at::Tensor& b) {
    return linear_cross_entropy(a, b, targets,
                                {.tile = {.logits = 1_MiB}, .terms = {.label_smoothing = 0.3}, .ignored = 7});
  };
  const auto gradients = [&](const auto& loss) {
    const at::Tensor a = x.clone().requires_grad_(), b = w.clone().requires_grad_();
    const at::Tensor value = loss(a, b);
    value.backward();
    return std::vector{value.detach(), a.grad(), b.grad()};
  };
  const auto found = gradients(tiled), expected = gradients(plain);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].scalar_type(), at::kDouble);
    expect_close(found[i], expected[i], 1e-12);
  }
  EXPECT_THROW(linear_cross_entropy(x, w, targets, {.terms = {.label_smoothing = 1.5}}), Error);
  EXPECT_THROW(linear_cross_entropy(x, w, targets, {.terms = {.z_loss = std::nan("")}}), Error);
}

TEST(LinearCrossEntropy, IsReplayed) {
  torch::manual_seed(5);
  const at::Tensor weight = torch::randn({100, 16}).requires_grad_(), x = torch::randn({1, 7, 16}).requires_grad_();
  const at::Tensor targets = torch::randint(0, 100, {1, 7});
  const auto loss = [&] { return linear_cross_entropy(torch::gelu(x), weight, targets); };
  loss().backward();
  const at::Tensor of_x = x.grad().clone(), of_weight = weight.grad().clone();
  x.mutable_grad() = at::Tensor();
  weight.mutable_grad() = at::Tensor();
  std::int64_t replayed = 0;
  {
    Region region(Recompute{});
    loss().backward();
    replayed = region.replayed_ops();
  }
  EXPECT_TRUE(same_bits(x.grad(), of_x));
  EXPECT_TRUE(same_bits(weight.grad(), of_weight));
  EXPECT_GE(replayed, 2);
}

}  // namespace
}  // namespace snug::ops
