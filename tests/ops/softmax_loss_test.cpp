#include "snug/ops/softmax_loss.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <vector>

#include "tests/equivalence/bitwise.h"

namespace snug::ops {
namespace {

using snug::testing::same_bits;

struct Case {
  at::ScalarType type;
  std::int64_t columns;
  bool has_bias;
  CrossEntropyTerms terms;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const std::int64_t columns : {1, 7, 16, 33, 1000}) {
      for (const bool has_bias : {false, true}) {
        for (const CrossEntropyTerms& terms :
             {CrossEntropyTerms{}, CrossEntropyTerms{.label_smoothing = 0.1}, CrossEntropyTerms{.z_loss = 1e-2},
              CrossEntropyTerms{.soft_cap = 3},
              CrossEntropyTerms{.label_smoothing = 0.2, .z_loss = 1e-3, .soft_cap = 5}}) {
          all.push_back({type, columns, has_bias, terms});
        }
      }
    }
  }
  return all;
}

struct Found {
  at::Tensor losses, gradients;
};

Logits logits_of(const Case& c, std::int64_t rows) {
  torch::manual_seed(c.columns);
  const auto options = at::TensorOptions().dtype(c.type);
  Logits in{.values = (torch::randn({rows, c.columns}) * 4).to(options),
            .targets = torch::randint(0, c.columns, {rows}),
            .ignored = -1};
  in.targets[rows / 2] = -1;
  if (c.has_bias) in.bias = torch::randn({c.columns}).to(options);
  return in;
}

Found by(decltype(softmax_loss)& loss, Logits in, const CrossEntropyTerms& terms) {
  in.values = in.values.clone();
  const at::Tensor losses = loss(in, terms, 3);
  return {losses, in.values};
}

/// Written out for autograd, in fp64.
Found by_autograd(const Logits& in, const CrossEntropyTerms& terms) {
  const at::Tensor values = in.values.to(at::kDouble).requires_grad_();
  at::Tensor x = in.bias ? values + in.bias->to(at::kDouble) : values;
  if (terms.soft_cap != 0) x = terms.soft_cap * torch::tanh(x / terms.soft_cap);
  const auto options = torch::nn::functional::CrossEntropyFuncOptions()
                           .ignore_index(in.ignored)
                           .label_smoothing(terms.label_smoothing)
                           .reduction(torch::kNone);
  const at::Tensor losses = torch::nn::functional::cross_entropy(x, in.targets, options) +
                            terms.z_loss * x.logsumexp(1).square() * in.targets.ne(in.ignored);
  (losses.sum() * 3).backward();
  return {losses.detach(), values.grad()};
}

double allowed(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 1e-12;
    case at::kFloat:
      return 4e-6;
    case at::kHalf:
      return 2e-3;
    default:
      return 2e-2;
  }
}

TEST(SoftmaxLoss, IsThatOfCrossEntropyWithItsGradients) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(::testing::Message() << c.type << ", " << c.columns << " columns, bias " << c.has_bias << ", terms "
                                      << c.terms.label_smoothing << " " << c.terms.z_loss << " " << c.terms.soft_cap);
    const Logits in = logits_of(c, 11);
    const Found expected = by_autograd(in, c.terms);
    // One column has one loss, which is 0, and gradients that cancel.
    const double floor = c.columns == 1 && c.type != at::kDouble ? 1e-2 : 0;
    for (const auto& found : {by(softmax_loss, in, c.terms), by(softmax_loss_of_operators, in, c.terms)}) {
      EXPECT_EQ(found.losses.scalar_type(), at::kDouble);
      EXPECT_LE((found.losses - expected.losses).abs().max().item<double>(),
                allowed(c.type) * std::max(expected.losses.abs().max().item<double>(), 1.0));
      EXPECT_LE((found.gradients.to(at::kDouble) - expected.gradients).abs().max().item<double>(),
                std::max(allowed(c.type) * expected.gradients.abs().max().item<double>(), floor));
      EXPECT_EQ(found.losses[5].item<double>(), 0);
      EXPECT_EQ(found.gradients[5].abs().max().item<double>(), 0);
    }
  }
}

TEST(SoftmaxLoss, HasTheSameBitsWithAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const Case c{.type = type, .columns = 50000, .has_bias = true, .terms = {.label_smoothing = 0.1, .soft_cap = 9}};
    const Logits in = logits_of(c, 37);
    at::set_num_threads(1);
    const Found one = by(softmax_loss, in, c.terms);
    at::set_num_threads(3);
    const Found three = by(softmax_loss, in, c.terms);
    at::set_num_threads(before);
    EXPECT_TRUE(same_bits(one.losses, three.losses));
    EXPECT_TRUE(same_bits(one.gradients, three.gradients));
  }
}

TEST(SoftmaxLoss, WithoutGradientsIsTheSameLoss) {
  const Case c{.type = at::kBFloat16, .columns = 999, .has_bias = true, .terms = {}};
  Logits in = logits_of(c, 8);
  const Found with = by(softmax_loss, in, c.terms);
  EXPECT_TRUE(same_bits(softmax_loss(in, c.terms, 0), with.losses));
}

TEST(SoftmaxLoss, LargeAndMissingNumbersAreThoseOfCrossEntropy) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double number : {inf, -inf, nan, 3e38}) {
    Logits in{.values = torch::randn({3, 40}), .targets = torch::tensor({0, 5, 39})};
    in.values[1][7] = number;
    const at::Tensor expected = torch::nn::functional::cross_entropy(
        in.values, in.targets, torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kNone));
    const at::Tensor found = softmax_loss(in, {}, 1).to(at::kFloat);
    EXPECT_TRUE(torch::allclose(found, expected, 1e-5, 1e-5, /*equal_nan=*/true)) << number << found << expected;
  }
}

}  // namespace
}  // namespace snug::ops
