// GPT-2 against Hugging Face's, on weights and results that make_references.py wrote.
#include "snug/models/gpt2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "reference.h"
#include "snug/base/errors.h"
#include "snug/models/parameter.h"
#include "snug/state/load_weights.h"

namespace snug::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Without dropout: rates of a test are set in it.
const Gpt2Options kSmallGpt2{.layers = 3,
                             .width = 24,
                             .inner_width = 96,
                             .heads = 3,
                             .vocabulary = 64,
                             .sequence = 40,
                             .embedding_dropout = 0,
                             .residual_dropout = 0,
                             .attention_dropout = 0};

Gpt2 loaded_gpt2(const Gpt2Options& options = kSmallGpt2) {
  Gpt2 model(options);
  state::load_weights(*model, stored("gpt2"), "gpt2.safetensors");
  return model;
}

const state::StoredTensors& gpt2_expected() {
  static const state::StoredTensors all = stored("gpt2_expected");
  return all;
}

/// The reference leaves the last position out of the loss, and here it has no target.
at::Tensor next_of(const at::Tensor& tokens) {
  const std::int64_t length = tokens.size(1);
  at::Tensor targets = at::full_like(tokens, -100);
  targets.narrow(1, 0, length - 1).copy_(tokens.narrow(1, 1, length - 1));
  return targets;
}

TEST(Gpt2, GivesTheReferencesLogitsAndGradients) {
  const at::Tensor tokens = gpt2_expected().at("tokens").read();
  Gpt2 model = loaded_gpt2();
  EXPECT_LT(difference(model->forward(tokens), gpt2_expected().at("logits").read()), kRounding);
  const at::Tensor loss = model->loss(tokens, next_of(tokens));
  EXPECT_LT(difference(loss, gpt2_expected().at("loss").read()), kRounding);
  loss.backward();
  expect_gradients(*model, gpt2_expected(), kRounding);
}

TEST(Gpt2, WithACacheGivesTheSameLogitsPieceByPiece) {
  const at::NoGradGuard no_grad;
  Gpt2 model = loaded_gpt2();
  const at::Tensor tokens = gpt2_expected().at("tokens").read(), whole = model->forward(tokens);
  KeyValueCache cache;
  std::int64_t from = 0;
  for (const std::int64_t length : {5, 1, 1, 20, 1, 12}) {
    const at::Tensor piece = model->forward(tokens.narrow(1, from, length), &cache);
    EXPECT_LT(difference(piece, whole.narrow(1, from, length)), kRounding) << from;
    from += length;
    EXPECT_EQ(cache.length, from);
  }
  EXPECT_EQ(from, tokens.size(1));
  KeyValueCache again;
  model->forward(tokens.narrow(1, 0, 30), &again);
  EXPECT_LT(difference(model->forward_last(tokens.narrow(1, 30, 10), &again), whole.select(1, 39)), kRounding);
}

TEST(Gpt2, LoadsFilesWithoutThePrefixAndWithMasks) {
  constexpr std::string_view kPrefix = "transformer.";
  state::StoredTensors old;
  for (const auto& [name, tensor] : stored("gpt2")) old.emplace(name.substr(kPrefix.size()), tensor);
  const state::StoredTensor mask{at::kFloat, {1, 1, 40, 40}, [] { return at::ones({1, 1, 40, 40}); }};
  old.emplace("h.0.attn.bias", mask);
  old.emplace("h.0.attn.masked_bias", mask);
  old.emplace("lm_head.weight", old.at("wte.weight"));
  Gpt2 model(kSmallGpt2);
  EXPECT_THROW(state::load_weights(*model, old, "the old file"), UsageError);
  state::load_weights(*model, old, "the old file", {.rename = gpt2_name});
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = gpt2_expected().at("tokens").read();
  EXPECT_TRUE(at::equal(model->forward(tokens), loaded_gpt2()->forward(tokens)));
  EXPECT_EQ(gpt2_name("transformer.h.11.attn.c_attn.bias"), "transformer.h.11.attn.c_attn.bias");
  EXPECT_EQ(gpt2_name("transformer.h.11.attn.bias"), std::nullopt);
}

TEST(Gpt2, BeginsAsTheReferenceDoes) {
  torch::manual_seed(1);
  Gpt2 model(Gpt2Options{.layers = 8, .width = 256, .inner_width = 1024, .heads = 4, .vocabulary = 500});
  const auto all = model->named_parameters();
  const auto deviation = [&](const char* name) { return all[name].std().item<double>(); };
  // Tens of thousands of draws: their deviation is within a few thousandths of that of the distribution.
  EXPECT_NEAR(deviation("transformer.wte.weight"), 0.02, 0.0005);
  EXPECT_NEAR(deviation("transformer.h.3.attn.c_attn.weight"), 0.02, 0.0005);
  EXPECT_NEAR(deviation("transformer.h.3.attn.c_proj.weight"), 0.02 / 4, 0.0002) << "by the root of 2 * 8 layers";
  EXPECT_NEAR(deviation("transformer.h.3.mlp.c_proj.weight"), 0.02 / 4, 0.0002);
  EXPECT_EQ(all["transformer.h.3.mlp.c_fc.bias"].abs().sum().item<double>(), 0);
}

TEST(Gpt2, DropsOutWhereItIsTold) {
  const at::NoGradGuard no_grad;
  const at::Tensor tokens = gpt2_expected().at("tokens").read();
  for (double Gpt2Options::*const rate :
       {&Gpt2Options::embedding_dropout, &Gpt2Options::residual_dropout, &Gpt2Options::attention_dropout}) {
    Gpt2Options options = kSmallGpt2;
    options.*rate = 0.5;
    Gpt2 model = loaded_gpt2(options);
    expect_dropout(*model, [&] { return model->forward(tokens); });
  }
  Gpt2 without = loaded_gpt2();
  const at::Tensor trained = without->forward(tokens);
  without->eval();
  EXPECT_TRUE(at::equal(trained, without->forward(tokens)));
}

TEST(Gpt2, ReleasedModelsHaveTheirSizes) {
  const ShapesOnlyScope shapes_only(at::kFloat);
  const auto parameters = [](const char* name) { return parameter_count(*Gpt2(gpt2_options(name))); };
  EXPECT_EQ(parameters("gpt2"), 124'439'808);
  EXPECT_EQ(parameters("gpt2-medium"), 354'823'168);
  EXPECT_EQ(parameters("gpt2-large"), 774'030'080);
  EXPECT_EQ(parameters("gpt2-xl"), 1'557'611'200);
  EXPECT_EQ(gpt2_names().size(), 4U);
  EXPECT_THAT([] { gpt2_options("gpt3"); }, ThrowsMessage<UsageError>(AllOf(HasSubstr("gpt3"), HasSubstr("gpt2-xl"))));
}

TEST(Gpt2, RefusesShapesThatCannotBe) {
  Gpt2Options options = kSmallGpt2;
  options.heads = 5;
  EXPECT_THAT([&] { Gpt2{options}; }, ThrowsMessage<UsageError>(AllOf(HasSubstr("24"), HasSubstr("5 heads"))));
  const at::NoGradGuard no_grad;
  Gpt2 model(kSmallGpt2);
  EXPECT_THAT(
      [&] {
        model->forward(torch::zeros({1, 41}, at::kLong));
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("sequence of 41"), HasSubstr("model's 40"))));
  KeyValueCache cache;
  model->forward(torch::zeros({1, 40}, at::kLong), &cache);
  EXPECT_THROW(model->forward(torch::zeros({1, 1}, at::kLong), &cache), UsageError);
  EXPECT_EQ(cache.length, 40) << "what is refused is not added";
}

}  // namespace
}  // namespace snug::models
