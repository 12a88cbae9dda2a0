// The GPT: its size, its loss before training, that it looks back only, and what it refuses.
#include "snug/models/gpt.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "tests/equivalence/bitwise.h"

namespace snug::models {
namespace {

const GptOptions kSmallGpt{.blocks = 2, .width = 32, .heads = 4, .sequence = 16, .vocabulary = 100};

TEST(Gpt, HasTheParametersOfTheArchitecture) {
  Gpt model(kSmallGpt);
  std::int64_t count = 0;
  for (const auto& p : model->parameters()) count += p.numel();
  const std::int64_t w = 32;
  const std::int64_t block = 12 * w * w + 13 * w;  // four matrices with biases, two norms
  EXPECT_EQ(count, 2 * block + 100 * w + 16 * w + 2 * w) << "the output projection is the token embedding";
}

// Runs of a seed, and sums over all parameters, are bitwise what they were when blocks had matrices of their own.
TEST(Gpt, DrawsItsWeightsInTheirOrder) {
  torch::manual_seed(5);
  Gpt model(kSmallGpt);
  torch::manual_seed(5);
  const auto all = model->named_parameters();
  std::vector<std::string> names;
  for (const auto& p : all) names.push_back(p.key());
  const auto drawn = [&](const std::string& name, std::vector<std::int64_t> sizes, double deviation) {
    EXPECT_TRUE(at::equal(all[name], torch::randn(sizes).mul_(deviation))) << name;
  };
  drawn("token_embedding", {100, 32}, 0.02);
  drawn("position_embedding", {16, 32}, 0.02);
  for (const std::string block : {"blocks.0.", "blocks.1."}) {
    drawn(block + "qkv.weight", {96, 32}, 0.02);
    drawn(block + "projection.weight", {32, 32}, 0.02 / 2);  // by the root of 2 * 2 blocks
    drawn(block + "up.weight", {128, 32}, 0.02);
    drawn(block + "down.weight", {32, 128}, 0.02 / 2);
  }
  EXPECT_EQ(std::vector(names.begin() + 2, names.begin() + 12),
            (std::vector<std::string>{"blocks.0.qkv.weight", "blocks.0.qkv.bias", "blocks.0.projection.weight",
                                      "blocks.0.projection.bias", "blocks.0.up.weight", "blocks.0.up.bias",
                                      "blocks.0.down.weight", "blocks.0.down.bias", "blocks.0.attention_norm.weight",
                                      "blocks.0.attention_norm.bias"}));
}

/// The loss as it was written out when the model was no preset of GPT-2.
at::Tensor loss_by_hand(Gpt& model, const GptOptions& o, const at::Tensor& tokens, const at::Tensor& targets) {
  const auto all = model->named_parameters();
  const std::int64_t batch = tokens.size(0), length = tokens.size(1);
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    return at::linear(x, all[name + ".weight"], all[name + ".bias"]);
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {o.width}, all[name + ".weight"], all[name + ".bias"], 1e-5);
  };
  const auto heads = [&](const at::Tensor& t) {
    return t.view({batch, length, o.heads, o.width / o.heads}).transpose(1, 2);
  };
  at::Tensor x = at::embedding(all["token_embedding"], tokens) + all["position_embedding"].narrow(0, 0, length);
  x = at::dropout(x, o.dropout, true);
  for (const std::string block : {"blocks.0.", "blocks.1."}) {
    const auto qkv = linear(norm(x, block + "attention_norm"), block + "qkv").split(o.width, 2);
    const at::Tensor attended =
        at::scaled_dot_product_attention(heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), {}, 0.0, /*is_causal=*/true)
            .transpose(1, 2)
            .reshape({batch, length, o.width});
    x = x + at::dropout(linear(attended, block + "projection"), o.dropout, true);
    const at::Tensor inner = at::gelu(linear(norm(x, block + "mlp_norm"), block + "up"), "tanh");
    x = x + at::dropout(linear(inner, block + "down"), o.dropout, true);
  }
  const at::Tensor logits = at::linear(norm(x, "final_norm"), all["token_embedding"]);
  return at::cross_entropy_loss(logits.view({-1, o.vocabulary}), targets.reshape(-1));
}

TEST(Gpt, LossAndGradientsAreBitwiseThoseOfItsOperators) {
  GptOptions options = kSmallGpt;
  options.dropout = 0.2;
  torch::manual_seed(2);
  Gpt model(options);
  const at::Tensor tokens = torch::randint(0, 100, {3, 16}), targets = torch::randint(0, 100, {3, 16});
  const auto run = [&](const std::function<at::Tensor()>& loss_of) {
    torch::manual_seed(9);  // the masks of dropout are drawn in one order
    model->zero_grad();
    const at::Tensor loss = loss_of();
    loss.backward();
    std::vector<at::Tensor> made{loss.detach()};
    for (const at::Tensor& p : model->parameters()) made.push_back(p.grad().clone());
    return made;
  };
  snug::testing::expect_same(run([&] { return loss_by_hand(model, options, tokens, targets); }),
                             run([&] { return model->loss(tokens, targets); }));
}

TEST(Gpt, StartsAtTheLossOfAGuess) {
  torch::manual_seed(2);
  Gpt model(kSmallGpt);
  const at::Tensor tokens = torch::randint(0, 100, {8, 16});
  EXPECT_NEAR(model->loss(tokens, torch::randint(0, 100, {8, 16})).item<double>(), std::log(100.0), 0.2);
}

TEST(Gpt, LooksBackOnly) {
  torch::manual_seed(2);
  Gpt model(kSmallGpt);
  const at::Tensor tokens = torch::randint(0, 100, {1, 16});
  at::Tensor changed = tokens.clone();
  changed[0][10] = (changed[0][10].item<std::int64_t>() + 1) % 100;
  const at::Tensor a = model->forward(tokens), b = model->forward(changed);
  EXPECT_TRUE(at::equal(a.narrow(1, 0, 10), b.narrow(1, 0, 10)));
  EXPECT_FALSE(at::equal(a.narrow(1, 10, 6), b.narrow(1, 10, 6)));
}

TEST(Gpt, DropsOutInTrainingOnly) {
  GptOptions options = kSmallGpt;
  options.dropout = 0.5;
  Gpt model(options);
  const at::Tensor tokens = torch::randint(0, 100, {2, 16});
  EXPECT_FALSE(at::equal(model->forward(tokens), model->forward(tokens)));
  model->eval();
  EXPECT_TRUE(at::equal(model->forward(tokens), model->forward(tokens)));
}

TEST(Gpt, RefusesShapesThatCannotBe) {
  GptOptions options = kSmallGpt;
  options.heads = 5;
  EXPECT_THROW(Gpt{options}, UsageError);
  Gpt model(kSmallGpt);
  EXPECT_THROW(model->forward(torch::zeros({1, 17}, at::kLong)), UsageError);
}

}  // namespace
}  // namespace snug::models
