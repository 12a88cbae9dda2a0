// Rounding by chance.
#include "snug/optim/stochastic_rounding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "snug/optim/adamw.h"
#include "tests/base/fault.h"

namespace snug::optim {
namespace {

at::Tensor rounded(const at::Tensor& numbers, const RoundingChances& chances) {
  const at::Tensor out = at::empty_like(numbers, at::kBFloat16);
  round_stochastically(numbers, out, chances);
  return out;
}

TEST(StochasticRounding, GivesOneOfTheNeighboursAndKeepsTheMean) {
  // Between 1 and 1 + 1/128, a quarter of the way.
  const float number = 1 + 0.25F / 128;
  for (const float sign : {1.0F, -1.0F}) {
    const at::Tensor all = rounded(torch::full({400, 500}, sign * number), {1, 2, 3}).to(at::kFloat).abs();
    EXPECT_TRUE(all.eq(1).logical_or(all.eq(1 + 1.0F / 128)).all().item<bool>());
    EXPECT_NEAR(all.gt(1).to(at::kFloat).mean().item<float>(), 0.25, 0.005);
  }
}

TEST(StochasticRounding, LeavesWhatTheTypeHas) {
  torch::manual_seed(1);
  const at::Tensor had = at::cat({torch::randn({1000}).to(at::kBFloat16).to(at::kFloat),
                                  at::tensor({0.0F, -0.0F, std::numeric_limits<float>::infinity()})});
  EXPECT_TRUE(at::equal(rounded(had, {5, 6, 7}).to(at::kFloat), had));
  EXPECT_TRUE(rounded(at::full({3}, std::numeric_limits<float>::quiet_NaN()), {}).isnan().all().item<bool>());
}

TEST(StochasticRounding, DependsOnItsChancesAlone) {
  torch::manual_seed(2);
  const at::Tensor numbers = torch::randn({300, 200});
  at::set_num_threads(1);
  const at::Tensor one = rounded(numbers, {1, 2, 3});
  at::set_num_threads(2);
  EXPECT_TRUE(at::equal(one, rounded(numbers, {1, 2, 3})));
  EXPECT_TRUE(at::equal(one.t().contiguous(), rounded(numbers, {1, 2, 3}).t().contiguous()));
  for (const RoundingChances& other : {RoundingChances{2, 2, 3}, RoundingChances{1, 3, 3}, RoundingChances{1, 2, 4}})
    EXPECT_GT(one.ne(rounded(numbers, other)).to(at::kFloat).mean().item<float>(), 0.2);
  const at::Tensor turned = at::empty({200, 300}, at::kBFloat16).t();
  const auto version = turned._version();
  round_stochastically(numbers, turned, {1, 2, 3});
  EXPECT_TRUE(at::equal(turned, one)) << "whatever the strides";
  EXPECT_GT(turned._version(), version);
}

TEST(StochasticRounding, MovesWeightsWithoutMasters) {
  torch::manual_seed(3);
  const at::Tensor begin = torch::randn({64, 64}).to(at::kBFloat16);
  const auto trained = [&](const FewBitWeights& few_bits) {
    Parameters parameters{begin.clone().requires_grad_()};
    parameters.few_bits = few_bits;
    AdamW optimizer(parameters, {.weight_decay = 0});
    const at::Tensor& weight = parameters.tensors.front();
    for (int i = 0; i < 100; ++i) {
      weight.mutable_grad() = torch::ones({64, 64}).to(at::kBFloat16);
      optimizer.step(2e-5);
    }
    std::vector<std::string> kept;
    for (const auto& [name, tensor] : optimizer.named_state({"w"})) {
      kept.push_back(name);
      EXPECT_EQ(tensor.scalar_type(), at::kFloat);
    }
    EXPECT_EQ(std::ranges::count(kept, "master.w"), std::holds_alternative<MasterWeights>(few_bits) ? 1 : 0);
    return (weight.detach().to(at::kFloat) - begin.to(at::kFloat)).mean().item<float>();
  };
  // A hundred steps of 2e-5 down.
  EXPECT_NEAR(trained(MasterWeights{}), -2e-3, 2e-4);
  EXPECT_NEAR(trained(StochasticRounding{7}), -2e-3, 2e-4);
  Parameters few{torch::zeros({2}).to(at::kHalf).requires_grad_()};
  few.few_bits = StochasticRounding{};
  EXPECT_THAT(snug::testing::fault([&] { const AdamW optimizer(few, {}); }), ::testing::HasSubstr("fp16"));
}

}  // namespace
}  // namespace snug::optim
