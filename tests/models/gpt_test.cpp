// The GPT: its size, its loss before training, that it looks back only, and what it refuses.
#include "snug/models/gpt.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "snug/base/errors.h"

namespace snug::models {
namespace {

const GptOptions kSmall{.blocks = 2, .width = 32, .heads = 4, .sequence = 16, .vocabulary = 100};

TEST(Gpt, HasTheParametersOfTheArchitecture) {
  Gpt model(kSmall);
  std::int64_t count = 0;
  for (const auto& p : model->parameters()) count += p.numel();
  const std::int64_t w = 32;
  const std::int64_t block = 12 * w * w + 13 * w;  // four matrices with biases, two norms
  EXPECT_EQ(count, 2 * block + 100 * w + 16 * w + 2 * w) << "the output projection is the token embedding";
}

TEST(Gpt, StartsAtTheLossOfAGuess) {
  torch::manual_seed(2);
  Gpt model(kSmall);
  const at::Tensor tokens = torch::randint(0, 100, {8, 16});
  EXPECT_NEAR(model->loss(tokens, torch::randint(0, 100, {8, 16})).item<double>(), std::log(100.0), 0.2);
}

TEST(Gpt, LooksBackOnly) {
  torch::manual_seed(2);
  Gpt model(kSmall);
  const at::Tensor tokens = torch::randint(0, 100, {1, 16});
  at::Tensor changed = tokens.clone();
  changed[0][10] = (changed[0][10].item<std::int64_t>() + 1) % 100;
  const at::Tensor a = model->forward(tokens), b = model->forward(changed);
  EXPECT_TRUE(at::equal(a.narrow(1, 0, 10), b.narrow(1, 0, 10)));
  EXPECT_FALSE(at::equal(a.narrow(1, 10, 6), b.narrow(1, 10, 6)));
}

TEST(Gpt, DropsOutInTrainingOnly) {
  GptOptions options = kSmall;
  options.dropout = 0.5;
  Gpt model(options);
  const at::Tensor tokens = torch::randint(0, 100, {2, 16});
  EXPECT_FALSE(at::equal(model->forward(tokens), model->forward(tokens)));
  model->eval();
  EXPECT_TRUE(at::equal(model->forward(tokens), model->forward(tokens)));
}

TEST(Gpt, RefusesShapesThatCannotBe) {
  GptOptions options = kSmall;
  options.heads = 5;
  EXPECT_THROW(Gpt{options}, UsageError);
  Gpt model(kSmall);
  EXPECT_THROW(model->forward(torch::zeros({1, 17}, at::kLong)), UsageError);
}

}  // namespace
}  // namespace snug::models
