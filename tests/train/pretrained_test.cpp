// Pretrained models: the same tiny Llama as a GGUF file and as transformers saves it (make_references.py).
#include "snug/train/families/llama_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "snug/models/lora.h"
#include "snug/state/safetensors.h"
#include "snug/train/language_model.h"
#include "snug/train/model_family.h"
#include "tests/base/scratch.h"
#include "tests/train/reference_files.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using snug::testing::scratch;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

at::Tensor expected(const char* name) {
  return state::open_safetensors(kHere / "tiny_expected.safetensors").tensors.at(name).read();
}

std::unique_ptr<const LlamaFiles> open_llama(const fs::path& path) { return LlamaFiles::open(ModelFiles(path)); }

double difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

constexpr double kRounding = 1e-4;  // of logits of the order of 10, as transformers sums in another order

std::string error_of(const auto& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

/// A copy of the folder with a text in one of its files replaced.
fs::path folder_with(const char* file, const std::string& from, const std::string& to) {
  const fs::path folder = fs::path(::testing::TempDir()) / "snug_pretrained";
  fs::remove_all(folder);
  fs::copy(kHere / "tiny", folder, fs::copy_options::recursive);
  std::string text = read_text(folder / file);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  text.replace(at, from.size(), to);
  std::ofstream(folder / file, std::ios::binary) << text;
  return folder;
}

TEST(Pretrained, GivesTheReferencesLogitsFromEitherLayout) {
  const at::NoGradGuard no_grad;
  for (const char* name : {"tiny.gguf", "tiny"}) {
    const auto files = open_llama(kHere / name);
    EXPECT_EQ(files->options().layers, 2);
    EXPECT_EQ(files->options().key_heads, 1);
    EXPECT_TRUE(files->options().tied);
    EXPECT_THAT(files->ends(), ElementsAre(0));
    models::Llama model = files->load(BaseWeights::Fp32);
    EXPECT_LT(difference(model->forward(expected("tokens")), expected("logits")), kRounding) << name;
    models::Llama shorter = files->load(BaseWeights::Bf16);
    EXPECT_EQ(shorter->parameters()[0].scalar_type(), at::kBFloat16);
    EXPECT_LT(difference(shorter->forward(expected("tokens")), expected("logits")), 0.5) << name;
  }
}

TEST(Pretrained, AHeadThatIsTiedAndInTheFileMustBeTheEmbedding) {
  const fs::path folder = folder_with("config.json", "\"llama\"", "\"llama\"");
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, tensor] : state::open_safetensors(folder / "model.safetensors").tensors)
    tensors.emplace_back(name, tensor.read().clone());
  const auto embedding = std::ranges::find(tensors, "model.embed_tokens.weight", [](const auto& t) { return t.first; });
  ASSERT_NE(embedding, tensors.end());
  tensors.emplace_back("lm_head.weight", embedding->second.clone());
  const auto loaded = [&] {
    state::write_safetensors(folder / "model.safetensors", {tensors.begin(), tensors.end()});
    return error_of([&] { (void)open_llama(folder)->load(BaseWeights::Fp32); });
  };
  EXPECT_EQ(loaded(), "none");
  tensors.back().second[7][3] += 1;
  EXPECT_THAT(loaded(),
              HasSubstr("lm_head.weight is model.embed_tokens.weight (tie_word_embeddings), and its file has"));
  tensors.back().second = tensors.back().second.slice(0, 0, 10).clone();
  EXPECT_THAT(loaded(), HasSubstr("set tie_word_embeddings to false there"));
}

TEST(Pretrained, PackedWeightsGiveTheSameAndAreNoParameters) {
  const at::NoGradGuard no_grad;
  const auto files = open_llama(kHere / "tiny.gguf");
  models::Llama model = files->load(BaseWeights::Packed);
  EXPECT_LT(difference(model->forward(expected("tokens")), expected("logits")), kRounding);
  EXPECT_EQ(model->parameters().size(), 5);  // the norms
  EXPECT_THAT(error_of([] { (void)open_llama(kHere / "tiny")->load(BaseWeights::Packed); }),
              HasSubstr("it has no blocks"));
}

TEST(Pretrained, BothTokenizersAreTheSame) {
  const auto a = open_llama(kHere / "tiny.gguf")->tokenizer();
  const auto b = open_llama(kHere / "tiny")->tokenizer();
  const std::string text = "the thing, in another world.<|end|> \xff\xfe\n  and so on";
  EXPECT_EQ(a->encode(text), b->encode(text));
  EXPECT_EQ(a->decode(a->encode(text)), text);
  EXPECT_EQ(a->encode("the<|end|>").back(), 0);
  EXPECT_EQ(a->encode("the").size(), 1);
}

TEST(Pretrained, AnAdapterOfPeftGivesItsLogits) {
  const at::NoGradGuard no_grad;
  models::Llama model = open_llama(kHere / "tiny")->load(BaseWeights::Fp32);
  load_adapter(*model, kHere / "tiny_adapter");
  EXPECT_LT(difference(model->forward(expected("tokens")), expected("adapted")), kRounding);
  EXPECT_GT(difference(expected("logits"), expected("adapted")), 0.1);

  const fs::path saved = fs::path(::testing::TempDir()) / "snug_saved_adapter";
  save_adapter(*model, "tiny", saved);  // with alpha as it was loaded
  models::Llama again = open_llama(kHere / "tiny.gguf")->load(BaseWeights::Packed);
  load_adapter(*again, saved);
  EXPECT_LT(difference(again->forward(expected("tokens")), expected("adapted")), kRounding);
  merge_lora(*model);
  EXPECT_LT(difference(model->forward(expected("tokens")), expected("adapted")), kRounding);
}

TEST(Pretrained, AnAdapterOfAnotherModelIsRefusedWithAllThatDoesNotFit) {
  models::LlamaOptions options = open_llama(kHere / "tiny")->options();
  options.layers = 1;
  options.inner_width = 96;
  models::Llama model(options);
  const std::string said = error_of([&] { load_adapter(*model, kHere / "tiny_adapter"); });
  for (const char* part : {"is for another model", "of its 4 modules 3 do not fit",
                           "model.layers.0.mlp.down_proj (32x96 in the model, 32x64 in the adapter)",
                           "model.layers.1.self_attn.q_proj (not there)"}) {
    EXPECT_THAT(said, HasSubstr(part));
  }
  EXPECT_TRUE(models::lora_parameters(*model).empty());
  EXPECT_TRUE(model->parameters()[0].requires_grad());
}

TEST(Pretrained, TokensBesideASentencePieceModelAreRefused) {
  const fs::path folder = folder_with("config.json", "\"llama\"", "\"llama\"");
  fs::remove(folder / "tokenizer.json");  // of another tokenizer
  fs::copy_file(kHere.parent_path() / "data" / "unigram.model", folder / "tokenizer.model");
  const auto tokenizer = [&] { return error_of([&] { (void)open_llama(folder)->tokenizer(); }); };
  const std::string without = tokenizer();
  EXPECT_THAT(without, Not(HasSubstr("no such one")));
  write_text(folder / "added_tokens.json", "{\"<s>\": 1}");  // one of its own
  EXPECT_EQ(tokenizer(), without);
  write_text(folder / "added_tokens.json", "{\"<|im_end|>\": 100000}");
  EXPECT_THAT(tokenizer(), AllOf(HasSubstr("has \"<|im_end|>\", token 100000"), HasSubstr("set data.tokenizer")));
}

TEST(Pretrained, TextsEndWhereTransformersEndsThem) {
  const fs::path folder = folder_with("config.json", "\"llama\"", "\"llama\"");
  const auto ends = [&] { return open_llama(folder)->ends(); };
  EXPECT_THAT(ends(), ElementsAre(0));
  write_text(folder / "generation_config.json", R"({"eos_token_id": [1, 9], "temperature": 0.6})");
  EXPECT_THAT(ends(), ElementsAre(1, 9));
  write_text(folder / "generation_config.json", R"({"temperature": 0.6, "eos_token_id": null})");
  EXPECT_THAT(ends(), ElementsAre(0)) << "as config.json says";
  write_text(folder / "generation_config.json", "{");
  EXPECT_THAT(error_of(ends), HasSubstr("generation_config.json: it is no JSON"));
}

TEST(Pretrained, ATokenizerMayBeOfAnyModelsFile) {
  std::string file = read_text(kHere / "tiny.gguf");
  const std::string key = "general.architecture";
  const std::size_t name = file.find("llama", file.find(key));
  ASSERT_LT(name - file.find(key), 60U);
  file.replace(name, 5, "qwen2");
  const fs::path path = scratch("pretrained/architecture") / "qwen2.gguf";
  write_text(path, file);
  EXPECT_THAT(error_of([&] { (void)open_llama(path); }), HasSubstr("qwen2"));
  Config config;
  config.data.tokenizer = path;
  config.model.vocabulary = 1000;
  const auto own = open_llama(kHere / "tiny.gguf")->tokenizer();
  EXPECT_EQ(make_tokenizer(config, nullptr)->encode("the thing"), own->encode("the thing"));
  config.model.vocabulary = 10;
  EXPECT_THAT(error_of([&] { (void)make_tokenizer(config, nullptr); }),
              AllOf(HasSubstr("model.vocabulary is 10; set it to"), HasSubstr(std::to_string(own->size()))));
}

TEST(Pretrained, IsOfTheFamilyThatItsFilesName) {
  EXPECT_EQ(&family_of(ModelFiles(kHere / "tiny.gguf")), &model_family("llama"));
  EXPECT_EQ(&family_of(ModelFiles(kHere / "tiny")), &model_family("llama"));
  const fs::path other = folder_with("config.json", "\"llama\"", "\"mamba\"");
  EXPECT_THAT(error_of([&] { (void)family_of(ModelFiles(other)); }),
              HasSubstr("its architecture is \"mamba\", and known are llama; use a model of one of these"));
  Config config;
  config.model.path = kHere / "tiny";
  EXPECT_THAT(error_of([&] { (void)open_pretrained(config); }),
              HasSubstr("is of the kind \"llama\", and model.kind is \"gpt\"; set it to \"llama\""));
  take_kind_of_files(config);
  EXPECT_EQ(config.model.kind, "llama");
  EXPECT_EQ(open_pretrained(config)->vocabulary(), 300);

  set_key(config, "model.kind=gpt2");
  take_kind_of_files(config);
  EXPECT_EQ(config.model.kind, "gpt2") << "which was named, and open_pretrained() refuses";
  Config without;
  take_kind_of_files(without);
  EXPECT_EQ(without.model.kind, Config{}.model.kind);
}

TEST(Pretrained, WhatCannotBeIsRefused) {
  const auto opened = [](const fs::path& path) { return error_of([&] { (void)open_llama(path); }); };
  EXPECT_THAT(opened("/nowhere.gguf"), HasSubstr("/nowhere.gguf"));
  EXPECT_THAT(opened(fs::path(::testing::TempDir())), HasSubstr("config.json: it cannot be read"));
  EXPECT_THAT(opened(kHere / "tiny" / "config.json"), HasSubstr("config.json"));
  EXPECT_THAT(opened(folder_with("config.json", "\"llama\"", "\"mamba\"")),
              HasSubstr("its model_type is \"mamba\"; it must be \"llama\""));
  EXPECT_THAT(opened(folder_with("config.json", "\"attention_bias\": false", "\"attention_bias\": true")),
              HasSubstr("attention_bias"));
  EXPECT_THAT(opened(folder_with("config.json", "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.1")),
              HasSubstr("its attention_dropout is 0.1; it must be 0"));
  EXPECT_THAT(opened(folder_with("config.json", "\"hidden_size\": 32", "\"hidden_size\": \"wide\"")),
              HasSubstr("its hidden_size is \"wide\"; it must be an integer, at least 1"));
  EXPECT_THAT(opened(folder_with("config.json", "\"rope_type\": \"default\"", "\"rope_type\": \"longrope\"")),
              HasSubstr("its rope_parameters.rope_type is \"longrope\"; it must be one of \"default\""));
  const fs::path wider = folder_with("config.json", "\"intermediate_size\": 64", "\"intermediate_size\": 80");
  const std::string said = error_of([&] { (void)open_llama(wider)->load(BaseWeights::Fp32); });
  EXPECT_THAT(said, HasSubstr("6 of another shape"));
  EXPECT_THAT(said, HasSubstr("model.layers.0.mlp.down_proj.weight (32x64 in the file, 32x80 in the model)"));
  const fs::path deeper = folder_with("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
  EXPECT_THAT(error_of([&] { (void)open_llama(deeper)->load(BaseWeights::Fp32); }), HasSubstr("9 missing"));
  const fs::path flatter = folder_with("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
  EXPECT_THAT(error_of([&] { (void)open_llama(flatter)->load(BaseWeights::Fp32); }), HasSubstr("9 left over"));
  const fs::path fewer = folder_with("config.json", "\"vocab_size\": 300", "\"vocab_size\": 200");
  EXPECT_THAT(error_of([&] { (void)open_llama(fewer)->tokenizer(); }), HasSubstr("has 272 tokens and the model 200"));
}

}  // namespace
}  // namespace snug::train
