// Llama against Hugging Face's, on weights and results that make_references.py wrote.
#include "snug/models/llama.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "reference.h"
#include "snug/base/errors.h"
#include "snug/models/gguf_names.h"
#include "snug/state/load_weights.h"
#include "snug/state/safetensors.h"

namespace snug::models {
namespace {

using ::testing::HasSubstr;

LlamaOptions small(RotaryScaling scaling = NoScaling{}) {
  return {.layers = 2,
          .width = 32,
          .inner_width = 48,
          .heads = 4,
          .key_heads = 2,
          .vocabulary = 64,
          .sequence = 128,
          .norm_epsilon = 1e-5,
          .rotary = {.width = 8, .base = 10000, .scaling = scaling}};
}

Llama loaded_llama(const LlamaOptions& options) {
  Llama model(options);
  const state::LoadOptions only{.rename = [&](std::string_view name) {
    return options.tied && name == "lm_head.weight" ? std::nullopt : std::optional<std::string>(name);
  }};
  state::load_weights(*model, stored("llama"), "llama.safetensors", only);
  return model;
}

const state::StoredTensors& llama_expected() {
  static const state::StoredTensors all = stored("llama_expected");
  return all;
}

TEST(Llama, GivesTheReferencesLogitsWithEveryRotaryScaling) {
  const at::Tensor tokens = llama_expected().at("tokens").read();
  const std::vector<std::pair<const char*, RotaryScaling>> scalings{
      {"logits.default", NoScaling{}},
      {"logits.linear", LinearScaling{4}},
      {"logits.dynamic", DynamicScaling{2, 32}},
      {"logits.llama3", Llama3Scaling{8, 1, 4, 32}},
      {"logits.yarn", YarnScaling{4, 32, 1, 16, std::nullopt}},
  };
  const at::NoGradGuard no_grad;
  const at::Tensor plain = loaded_llama(small())->forward(tokens);
  for (const auto& [name, scaling] : scalings) {
    const at::Tensor logits = loaded_llama(small(scaling))->forward(tokens);
    EXPECT_LT(difference(logits, llama_expected().at(name).read()), kRounding) << name;
    EXPECT_EQ(difference(logits, plain) > 1e-3, !std::holds_alternative<NoScaling>(scaling)) << name;
  }
  LlamaOptions tied = small();
  tied.tied = true;
  EXPECT_LT(difference(loaded_llama(tied)->forward(tokens), llama_expected().at("logits.tied").read()), kRounding);
}

TEST(Llama, GivesTheReferencesGradients) {
  const at::Tensor tokens = llama_expected().at("tokens").read();
  Llama model = loaded_llama(small());
  const std::int64_t length = tokens.size(1);
  // The reference leaves the last position out of the loss, and here it has no target.
  at::Tensor targets = at::full_like(tokens, -100);
  targets.narrow(1, 0, length - 1).copy_(tokens.narrow(1, 1, length - 1));
  model->loss(tokens, targets).backward();
  std::size_t compared = 0;
  for (const auto& p : model->named_parameters()) {
    EXPECT_LT(difference(p.value().grad(), llama_expected().at("gradient." + p.key()).read()), kRounding) << p.key();
    ++compared;
  }
  EXPECT_EQ(compared, 2U * 9 + 3);
}

TEST(Llama, WithACacheGivesTheSameLogitsPieceByPiece) {
  const at::NoGradGuard no_grad;
  Llama model = loaded_llama(small());
  const at::Tensor tokens = llama_expected().at("tokens").read(), whole = model->forward(tokens);
  KeyValueCache cache;
  std::vector<at::Tensor> pieces;
  std::int64_t from = 0;
  for (const std::int64_t length : {5, 1, 1, 20, 1, 20}) {
    pieces.push_back(model->forward(tokens.narrow(1, from, length), &cache));
    from += length;
    EXPECT_EQ(cache.length, from);
  }
  EXPECT_LT(difference(at::cat(pieces, 1), whole), kRounding);
}

TEST(Llama, ReleasedModelsHaveTheirPublishedSizes) {
  const auto parameters = [](const char* name) {
    const LlamaOptions o = llama_options(name);
    const std::int64_t key_width = o.key_heads * o.rotary.width, query_width = o.heads * o.rotary.width;
    const std::int64_t layer =
        2 * o.width * query_width + 2 * o.width * key_width + 3 * o.width * o.inner_width + 2 * o.width;
    return o.layers * layer + o.vocabulary * o.width * (o.tied ? 1 : 2) + o.width;
  };
  EXPECT_EQ(parameters("SmolLM2-135M"), 134'515'008);
  EXPECT_EQ(parameters("SmolLM2-360M"), 361'821'120);
  EXPECT_EQ(parameters("SmolLM2-1.7B"), 1'711'376'384);
  EXPECT_EQ(parameters("TinyLlama-1.1B"), 1'100'048'384);
  EXPECT_EQ(parameters("Llama-2-7B"), 6'738'415'616);
  EXPECT_EQ(parameters("Llama-3-8B"), 8'030'261'248);
  EXPECT_EQ(parameters("Llama-3.2-1B"), 1'235'814'400);
  EXPECT_EQ(parameters("Llama-3.2-3B"), 3'212'749'824);
  Llama model(small());
  std::int64_t count = 0;
  for (const auto& p : model->parameters()) count += p.numel();
  EXPECT_EQ(count, 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 2 * 32) + 2 * 64 * 32 + 32);
  EXPECT_THAT([] { llama_options("Llama-9"); }, ::testing::ThrowsMessage<UsageError>(HasSubstr("SmolLM2-135M")));
}

TEST(Llama, RefusesShapesThatCannotBe) {
  LlamaOptions options = small();
  options.key_heads = 3;
  EXPECT_THROW(Llama{options}, UsageError);
  options = small();
  options.rotary.width = 7;
  EXPECT_THROW(Llama{options}, UsageError);
  options = small();
  options.sequence = 16;
  Llama model(options);
  EXPECT_THROW(model->forward(torch::zeros({1, 17}, at::kLong)), UsageError);
  KeyValueCache cache;
  model->forward(torch::zeros({1, 16}, at::kLong), &cache);
  EXPECT_THROW(model->forward(torch::zeros({1, 1}, at::kLong), &cache), UsageError);
}

TEST(Llama, KnowsTheNamesAndRowsOfGgufFiles) {
  EXPECT_EQ(llama_name_of_gguf("blk.12.ffn_down.weight"), "model.layers.12.mlp.down_proj.weight");
  EXPECT_EQ(llama_name_of_gguf("token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(llama_name_of_gguf("rope_freqs.weight"), std::nullopt);
  EXPECT_EQ(llama_name_of_gguf("blk.0"), std::nullopt);
  EXPECT_TRUE(gguf_reorders_rows("model.layers.0.self_attn.k_proj.weight"));
  EXPECT_FALSE(gguf_reorders_rows("model.layers.0.self_attn.v_proj.weight"));
  // As llama.cpp's converter does it: (heads, 2, half) -> (heads, half, 2).
  const at::Tensor rows = at::arange(2 * 8), in_file = rows.view({2, 2, 4}).transpose(1, 2).reshape(-1);
  for (std::int64_t i = 0; i < 16; ++i) EXPECT_EQ(in_file[llama_row_of_gguf(i, 8)].item<std::int64_t>(), i);
}

TEST(Llama, DocumentsInOneRowDoNotSeeEachOther) {
  const at::Tensor tokens = llama_expected().at("tokens").read()[0];
  Llama model = loaded_llama(small());
  const std::vector<std::int64_t> lengths{7, 1, 12, 4};
  const std::int64_t all = 24;
  DocumentRows rows{at::empty({1, all}, at::kLong), at::zeros({1, 1, all, all}, at::kBool)};
  at::Tensor targets = at::full({1, all}, -100, at::kLong);
  at::Tensor losses = at::zeros({});
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    rows.positions[0].narrow(0, begin, length).copy_(at::arange(length));
    rows.mask[0][0]
        .narrow(0, begin, length)
        .narrow(1, begin, length)
        .copy_(at::ones({length, length}, at::kBool).tril());
    const at::Tensor document = tokens.narrow(0, begin, length).unsqueeze(0);
    if (length > 1) {
      const at::Tensor target = document.narrow(1, 1, length - 1);
      targets.narrow(1, begin, length - 1).copy_(target);
      losses = losses + model->loss(document.narrow(1, 0, length - 1), target) * (length - 1);
    }
    begin += length;
  }
  const at::Tensor expected_loss = losses / static_cast<double>(all - static_cast<std::int64_t>(lengths.size()));
  const at::Tensor loss = model->loss(tokens.narrow(0, 0, all).unsqueeze(0), targets, rows);
  EXPECT_LT(difference(loss, expected_loss), kRounding);
  expected_loss.backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : model->parameters()) gradients.push_back(p.grad().clone());
  model->zero_grad();
  loss.backward();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_LT(difference(model->parameters()[i].grad(), gradients[i]), kRounding);
  }
  // And with the mask that lets everything through it is another loss.
  rows.mask = at::ones({1, 1, all, all}, at::kBool).tril();
  EXPECT_GT(difference(model->loss(tokens.narrow(0, 0, all).unsqueeze(0), targets, rows), loss), 1e-3);
}

}  // namespace
}  // namespace snug::models
