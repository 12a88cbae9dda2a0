#include "snug/models/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "snug/base/errors.h"
#include "snug/models/autocast.h"
#include "snug/models/bert.h"
#include "snug/models/gpt.h"
#include "snug/models/gpt2.h"
#include "snug/models/parameter.h"
#include "tests/equivalence/bitwise.h"
#include "tests/ops/packed.h"
#include "tiny_llama.h"

namespace snug::models {
namespace {

using snug::testing::same_bits;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

at::Tensor tokens() { return torch::arange(20).view({2, 10}); }

TEST(Lora, BeginsAsTheModelWasAndTrainsNothingElse) {
  torch::manual_seed(1);
  Llama model(tiny_llama());
  const at::Tensor before = model->forward(tokens()).detach();
  EXPECT_THAT(add_lora(*model, {.targets = {"q_proj", "v_proj"}, .rank = 4}),
              ElementsAre("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj",
                          "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"));
  EXPECT_TRUE(same_bits(model->forward(tokens()), before));
  std::vector<std::string> trained;
  for (const auto& p : model->named_parameters()) {
    if (p.value().requires_grad()) trained.push_back(p.key());
  }
  EXPECT_EQ(trained.size(), 8);
  EXPECT_TRUE(std::ranges::all_of(trained, [](const auto& name) { return name.find(".lora_") != std::string::npos; }));
  const auto adapters = lora_parameters(*model);
  ASSERT_EQ(adapters.size(), 8);
  EXPECT_EQ(adapters[0].first, "model.layers.0.self_attn.q_proj.lora_A.weight");
  EXPECT_EQ(adapters[0].second.sizes(), (std::vector<std::int64_t>{4, 32}));
  EXPECT_EQ(adapters[3].second.sizes(), (std::vector<std::int64_t>{16, 4}));  // two heads of values
}

void train(Llama& model, int steps) {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, p] : lora_parameters(*model)) parameters.push_back(p);
  torch::optim::Adam optimizer(parameters, torch::optim::AdamOptions(0.02));
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    model->loss(tokens(), tokens() + 1).backward();
    optimizer.step();
  }
}

TEST(Lora, LearnsAndMergesIntoTheWeights) {
  torch::manual_seed(2);
  Llama model(tiny_llama());
  {
    const at::NoGradGuard no_grad;
    model->named_parameters()["model.embed_tokens.weight"].mul_(10);  // logits can be large
  }
  add_lora(*model, {.targets = {"all-linear"}, .rank = 4, .alpha = 8});
  const double loss = model->loss(tokens(), tokens() + 1).item<double>();
  train(model, 40);
  EXPECT_LT(model->loss(tokens(), tokens() + 1).item<double>(), loss - 0.5);
  const at::Tensor adapted = model->forward(tokens()).detach();
  merge_lora(*model);
  EXPECT_TRUE(lora_parameters(*model).empty());
  EXPECT_TRUE(torch::allclose(model->forward(tokens()), adapted, 1e-4, 1e-5));  // other sums
}

TEST(Lora, StandsBesidePackedWeights) {
  torch::manual_seed(3);
  Linear linear(64, 32, false);
  linear->pack(snug::testing::random_packed(32, 64));
  EXPECT_TRUE(linear->parameters().empty());
  torch::nn::ModuleDict model;
  model->update({{"q_proj", linear.ptr()}});
  add_lora(*model, {.targets = {"q_proj"}});
  const at::Tensor x = torch::randn({3, 64});
  linear->forward(x).square().sum().backward();
  const auto adapters = lora_parameters(*model);
  EXPECT_GT(adapters[1].second.grad().abs().max().item<double>(), 0);
  EXPECT_THROW(merge_lora(*model), UsageError);
}

/// Whatever is cast on the way to `from`, by its number of elements.
std::vector<std::int64_t> casts_behind(const at::Tensor& from) {
  std::vector<std::int64_t> found;
  std::set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> left = {from.grad_fn().get()};
  while (!left.empty()) {
    torch::autograd::Node* const node = left.back();
    left.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (node->name() == "ToCopyBackward0")
      found.push_back(c10::multiply_integers(node->input_metadata(0).shape_as_dim_vector()).expect_int());
    for (const auto& edge : node->next_edges()) left.push_back(edge.function.get());
  }
  return found;
}

TEST(Lora, RaisesNoInputThatAutocastMultipliesAsItIs) {
  torch::manual_seed(5);
  constexpr std::int64_t kIn = 64, kOut = 32, kRank = 4, kRows = 50;
  Linear linear(kIn, kOut, false);
  linear->weight.set_requires_grad(false);
  linear->adapt({.rank = kRank, .alpha = 8});
  linear->named_parameters()["lora_B.weight"].detach().normal_();
  const at::Tensor x = torch::randn({kRows, kIn}).to(at::kBFloat16).requires_grad_();
  const AutocastScope autocast(at::kBFloat16, c10::kCPU);
  const at::Tensor y = linear->forward(x);
  EXPECT_THAT(casts_behind(y), UnorderedElementsAre(kIn * kRank, kRank * kOut));  // the adapter's, in fp32
  const auto parameters = linear->named_parameters();
  // As the reference has it: a factor that is a power of two changes no bit, wherever it stands.
  const at::Tensor narrow = at::linear(x.to(at::kFloat), parameters["lora_A.weight"]);
  const at::Tensor expected = at::linear(x, linear->weight) + at::linear(narrow, parameters["lora_B.weight"]) * 2;
  EXPECT_TRUE(same_bits(y, expected));
  const auto gradients = [&](const at::Tensor& of) {
    return torch::autograd::grad({of.to(at::kFloat).square().sum()},
                                 {x, parameters["lora_A.weight"], parameters["lora_B.weight"]});
  };
  const auto found = gradients(y), reference = gradients(expected);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(same_bits(found[i], reference[i])) << i;
}

TEST(Lora, DropsOutOnlyInTraining) {
  torch::manual_seed(4);
  Linear linear(16, 16, false);
  linear->adapt({.rank = 2, .dropout = 0.5});
  linear->named_parameters()["lora_B.weight"].detach().fill_(1);
  const at::Tensor x = torch::randn({3, 16});
  EXPECT_FALSE(same_bits(linear->forward(x), linear->forward(x)));
  linear->eval();
  EXPECT_TRUE(same_bits(linear->forward(x), linear->forward(x)));
}

TEST(Lora, ScalesByAlphaOverRankOrItsRoot) {
  EXPECT_EQ((LoraOptions{.rank = 16, .alpha = 8}).factor(), 0.5);
  EXPECT_EQ((LoraOptions{.rank = 16, .alpha = 8, .scale = LoraScale::AlphaOverRootRank}).factor(), 2);
}

/// Trains a few steps; returns the names of the parameters that moved.
std::vector<std::string> moved(torch::nn::Module& model, const std::function<at::Tensor()>& loss) {
  std::vector<at::Tensor> before, trained;
  for (const at::Tensor& p : model.parameters()) {
    before.push_back(p.detach().clone());
    if (p.requires_grad()) trained.push_back(p);
  }
  torch::optim::Adam optimizer(trained, torch::optim::AdamOptions(0.01));
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
  std::vector<std::string> names;
  std::size_t i = 0;
  for (const auto& p : model.named_parameters()) {
    if (!same_bits(p.value().detach(), before[i++])) names.push_back(p.key());
  }
  return names;
}

const BertOptions kTinyBert{.layers = 1,
                            .width = 32,
                            .inner_width = 64,
                            .heads = 2,
                            .vocabulary = 64,
                            .sequence = 16,
                            .dropout = 0,
                            .attention_dropout = 0};

TEST(Lora, TheNewHeadOfAClassifierTrains) {
  torch::manual_seed(5);
  BertClassifier model(kTinyBert, 3);
  EXPECT_THAT(add_lora(*model, {.targets = {"query"}, .rank = 2}),
              ElementsAre("bert.encoder.layer.0.attention.self.query"));
  EXPECT_THAT(lora_options(*model)->modules_to_save, ElementsAre("classifier"));
  const auto whole = whole_modules(*model);
  ASSERT_EQ(whole.size(), 2U);
  EXPECT_EQ(whole[0].first, "classifier.weight");
  const at::Tensor labels = torch::tensor({0, 2});
  EXPECT_THAT(moved(*model, [&] { return model->loss({.tokens = tokens()}, labels); }),
              UnorderedElementsAre("bert.encoder.layer.0.attention.self.query.lora_A.weight",
                                   "bert.encoder.layer.0.attention.self.query.lora_B.weight", "classifier.weight",
                                   "classifier.bias"));
}

TEST(Lora, WhatTrainsWholeGetsNoAdapter) {
  BertClassifier bert(kTinyBert, 3);
  const auto names = add_lora(*bert, {.targets = {"all-linear"}, .rank = 2});
  EXPECT_THAT(names, Contains("bert.pooler.dense"));
  EXPECT_THAT(names, Not(Contains("classifier")));
  Llama llama(tiny_llama());
  EXPECT_THAT(add_lora(*llama, {.targets = {"all-linear"}, .modules_to_save = {"layers.1.mlp", "norm"}, .rank = 2}),
              Not(Contains(HasSubstr("layers.1.mlp"))));
  std::vector<std::string> whole;
  for (const auto& [name, tensor] : whole_modules(*llama)) {
    whole.push_back(name);
    EXPECT_TRUE(tensor.requires_grad());
  }
  EXPECT_THAT(whole, UnorderedElementsAre("model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
                                          "model.layers.1.mlp.down_proj.weight", "model.norm.weight"));
}

TEST(Lora, FindsNamesInGptAndGpt2) {
  torch::manual_seed(6);
  Gpt gpt(GptOptions{.blocks = 1, .width = 32, .heads = 2, .sequence = 16, .vocabulary = 64});
  EXPECT_THAT(add_lora(*gpt, {.targets = {"all-linear"}, .rank = 2}),
              ElementsAre("blocks.0.qkv", "blocks.0.projection", "blocks.0.up", "blocks.0.down"));
  EXPECT_EQ(moved(*gpt, [&] { return gpt->loss(tokens(), tokens() + 1); }).size(), 8U);
  Gpt2 gpt2(Gpt2Options{.layers = 1, .width = 32, .inner_width = 64, .heads = 2, .vocabulary = 64, .sequence = 16});
  gpt2->eval();
  const at::Tensor before = gpt2->forward(tokens()).detach();
  EXPECT_THAT(add_lora(*gpt2, {.targets = {"c_attn", "c_fc"}, .rank = 2}),
              ElementsAre("transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_fc"));
  EXPECT_TRUE(same_bits(gpt2->forward(tokens()), before));
  EXPECT_EQ(moved(*gpt2, [&] { return gpt2->loss(tokens(), tokens() + 1); }).size(), 4U);
  const auto adapters = lora_parameters(*gpt2);
  EXPECT_EQ(adapters[0].second.sizes(), (std::vector<std::int64_t>{2, 32}));
  EXPECT_EQ(adapters[1].second.sizes(), (std::vector<std::int64_t>{96, 2}))
      << "(out, rank), though weights are (in, out)";
  const at::Tensor adapted = gpt2->forward(tokens()).detach();
  EXPECT_FALSE(torch::allclose(adapted, before, 1e-4, 1e-5));
  merge_lora(*gpt2);
  EXPECT_TRUE(torch::allclose(gpt2->forward(tokens()), adapted, 1e-4, 1e-5));  // other sums
}

TEST(Lora, FindsModulesByPattern) {
  const char* const name = "model.layers.11.self_attn.q_proj";
  EXPECT_TRUE(target_names("q_proj", name));
  EXPECT_TRUE(target_names("self_attn.q_proj", name));
  EXPECT_TRUE(target_names("layers.1*.self_attn.*", name));
  EXPECT_TRUE(target_names("all-linear", name));
  EXPECT_TRUE(target_names(name, name));
  EXPECT_TRUE(target_names("layers.1[0-9].*.[qv]_proj", name));
  EXPECT_FALSE(target_names("layers.1[2-9].*.[qv]_proj", name));
  EXPECT_FALSE(target_names("proj", name));  // not at a dot
  EXPECT_FALSE(target_names("layers.2*.q_proj", name));
  EXPECT_FALSE(target_names("self_attn", name));
  EXPECT_FALSE(target_names("all-linear", "lm_head"));
}

TEST(Lora, RefusesWhatCannotBe) {
  Llama model(tiny_llama());
  const auto fault = [&](const LoraOptions& options) -> std::string {
    try {
      add_lora(*model, options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(fault({.targets = {"q_proj", "c_attn"}}),
              HasSubstr("\"c_attn\" names no linear module; there are down_proj"));
  EXPECT_THAT(fault({.rank = 0}), HasSubstr("rank 0"));
  EXPECT_THAT(fault({.dropout = 1}), HasSubstr("dropout 1"));
  EXPECT_THAT(fault({.alpha = -1}), HasSubstr("alpha -1"));
  EXPECT_THAT(fault({.targets = {}}), HasSubstr("no targets"));
  EXPECT_THAT(fault({.modules_to_save = {"score"}}), HasSubstr("\"score\", which names no module with parameters"));
  EXPECT_THAT(fault({.modules_to_save = {"q_proj", "v_proj"}}), HasSubstr("\"q_proj\" names no linear module"));
  EXPECT_TRUE(model->parameters()[0].requires_grad());  // as it was
  EXPECT_EQ(fault({}), "");
  EXPECT_THAT(fault({}), HasSubstr("has an adapter already"));
}

TEST(ShapesOnly, ParametersTakeNoMemory) {
  const auto bytes = [](const torch::nn::Module& m) {
    std::size_t sum = 0;
    for (const at::Tensor& p : m.parameters()) sum += p.storage().nbytes();
    return sum;
  };
  const ShapesOnlyScope scope(at::kBFloat16);
  const Llama model(tiny_llama());
  EXPECT_EQ(bytes(*model), 2 * model->parameters().size());
  EXPECT_EQ(model->named_parameters()["model.embed_tokens.weight"].sizes(), (std::vector<std::int64_t>{64, 32}));
  EXPECT_EQ(model->parameters()[0].scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace snug::models
