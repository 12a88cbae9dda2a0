// What fine-tuning leaves: a folder that transformers and snug read.
#include "snug/train/saved_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "snug/base/text_file.h"
#include "snug/models/bert.h"
#include "snug/models/gpt2.h"
#include "snug/models/llama.h"
#include "snug/models/lora.h"
#include "snug/state/peft_adapter.h"
#include "snug/state/safetensors.h"
#include "snug/state/training_state.h"
#include "snug/train/carried_files.h"
#include "snug/train/experiment.h"
#include "snug/train/families/llama_files.h"
#include "tests/base/fault.h"
#include "tests/base/scratch.h"
#include "tests/device/test_device.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using snug::testing::scratch;
using ::testing::HasSubstr;

const fs::path kTiny = fs::path(SNUG_TESTS) / "train" / "tiny";

/// Of every weight of a copy of the tiny model.
Config whole_model(const fs::path& folder) {
  fs::copy(kTiny, folder / "base");
  Config c;
  c.model.kind = "llama";
  c.model.path = folder / "base";
  c.model.sequence = 16;
  c.data.path = folder / "base" / "config.json";
  c.train.device = snug::testing::test_device().str();
  c.train.batch = 1;
  return c;
}

TEST(SavedModel, CarriesOverWhatTransformersReadsBesideTheWeights) {
  const fs::path folder = scratch("saved_model/carried");
  const Config config = whole_model(folder);
  const std::vector<std::string> files{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                       "generation_config.json", "chat_template.jinja"};
  for (const std::string& file : files) {
    if (file == "tokenizer.json") continue;  // is there
    write_text(folder / "base" / file,
               "{\"chat_template\":  \"{% if x %}\\u00e9\"}\r\n");  // as no writer would write it
  }
  fs::create_directory(folder / "base" / "additional_chat_templates");
  write_text(folder / "base" / "additional_chat_templates" / "rag.jinja", "{{ documents }}");
  Experiment experiment(config);
  const fs::path saved = save_trained(experiment, folder / "out");
  for (const std::string& file : files) EXPECT_EQ(read_text(saved / file), read_text(folder / "base" / file)) << file;
  const fs::path more = fs::path("additional_chat_templates") / "rag.jinja";
  EXPECT_EQ(read_text(saved / more), "{{ documents }}");
  EXPECT_FALSE(fs::exists(saved / "merges.txt"));
  const auto written = nlohmann::json::parse(read_text(saved / "config.json"));
  EXPECT_EQ(written["bos_token_id"], 1);
  EXPECT_EQ(written["eos_token_id"], 0);
}

TEST(SavedModel, CarriesNoFileFromOutsideOfTheModelsFolder) {
  const fs::path folder = scratch("saved_model/links");
  const Config config = whole_model(folder);
  write_text(folder / "secret", R"({"password": 1})");
  const fs::path link = folder / "base" / "tokenizer_config.json";
  fs::create_symlink("../secret", link);
  const Experiment experiment(config);
  EXPECT_THAT(snug::testing::fault([&] { check_can_save(experiment); }),
              AllOf(HasSubstr("tokenizer_config.json would be saved with the trained model"), HasSubstr("secret")));
  EXPECT_ANY_THROW(save_trained(experiment, folder / "out"));
  EXPECT_FALSE(fs::exists(folder / "out" / "model" / "tokenizer_config.json"));

  fs::remove(link);
  fs::create_symlink("tokenizer.json", link);
  EXPECT_NO_THROW(check_can_save(experiment));
  fs::remove(link);
  fs::create_directory(link);
  fs::create_directory_symlink("/", link / "all");
  EXPECT_THAT(snug::testing::fault([&] { check_can_save(experiment); }), HasSubstr("outside of the model's folder"));
}

TEST(SavedModel, CarriesFilesOfASnapshotWhoseContentsAreInItsRepository) {
  const fs::path folder = scratch("saved_model/snapshot");
  fs::create_directories(folder / "hub" / "models--a--b" / "blobs");
  fs::create_directories(folder / "hub" / "models--a--b" / "snapshots" / "1234");
  const fs::path snapshot = folder / "hub" / "models--a--b" / "snapshots" / "1234";
  write_text(folder / "hub" / "models--a--b" / "blobs" / "5678", "{}");
  fs::create_symlink("../../blobs/5678", snapshot / "tokenizer_config.json");
  EXPECT_EQ(carried_files(snapshot), std::vector<fs::path>{"tokenizer_config.json"});
  write_text(folder / "hub" / "other", "{}");
  fs::create_symlink("../../../other", snapshot / "vocab.json");
  EXPECT_THAT(snug::testing::fault([&] { (void)carried_files(snapshot); }), HasSubstr("vocab.json"));
}

TEST(SavedModel, LeavesFilesOfTheUserWhereTheyAre) {
  const fs::path folder = scratch("saved_model/own");
  Config config = whole_model(folder);
  config.model.path = kTiny.parent_path() / "tiny.gguf";
  Experiment experiment(config);
  const fs::path saved = save_trained(experiment, folder / "out");
  write_text(saved / "tokenizer.json", "{}");
  save_trained(experiment, folder / "out");
  EXPECT_EQ(read_text(saved / "tokenizer.json"), "{}");
}

TEST(SavedModel, OfAGgufFileSaysWhichTokenBeginsATextAndWhichEndIt) {
  const fs::path folder = scratch("saved_model/gguf");
  Config config = whole_model(folder);
  config.model.path = kTiny.parent_path() / "tiny.gguf";
  const Experiment experiment(config);
  const auto written =
      nlohmann::json::parse(read_text(fs::path(save_trained(experiment, folder / "out")) / "config.json"));
  EXPECT_EQ(written["bos_token_id"], experiment.begin().value());
  EXPECT_EQ(written["eos_token_id"], nlohmann::json({0}));
}

TEST(SavedModel, ANewOneTakesNothingFromTheFolderThatItIsTrainedIn) {
  const fs::path folder = scratch("saved_model/new");
  Config config = whole_model(folder);
  config.model.path.clear();
  config.model.blocks = 1, config.model.heads = 2, config.model.width = 16;
  write_text(folder / "tokenizer_config.json", "{}");
  write_text(folder / "config.json", R"({"bos_token_id": 77})");
  Experiment experiment(config);
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  const fs::path saved = save_trained(experiment, folder / "out");
  fs::current_path(before);
  EXPECT_FALSE(fs::exists(saved / "tokenizer_config.json"));
  const auto written = nlohmann::json::parse(read_text(saved / "config.json"));
  EXPECT_TRUE(written.contains("bos_token_id") && written["bos_token_id"].is_null()) << "transformers would take 1";
}

TEST(SavedModel, ALargeOneIsInShardsThatAreReadAgain) {
  const fs::path folder = scratch("saved_model/shards");
  const Config config = whole_model(folder);
  Experiment experiment(config);
  const fs::path saved = save_trained(experiment, folder / "out");
  EXPECT_TRUE(fs::exists(saved / "model.safetensors"));
  constexpr Bytes kLimit = 40'000;
  save_trained(experiment, folder / "out", {.shard = kLimit});
  EXPECT_FALSE(fs::exists(saved / "model.safetensors")) << "it would be read in place of the shards";
  const auto index = nlohmann::json::parse(read_text(saved / "model.safetensors.index.json"));
  std::int64_t total = 0;
  std::set<std::string> files;
  for (const auto& p : experiment.model().named_parameters()) {
    total += static_cast<std::int64_t>(p.value().nbytes());
    files.insert(index["weight_map"][p.key()].get<std::string>());
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(index["weight_map"].size(), experiment.model().named_parameters().size());
  EXPECT_EQ(files.size(), 3U);
  EXPECT_TRUE(files.contains("model-00003-of-00003.safetensors"));
  for (const std::string& file : files) {
    EXPECT_LE(static_cast<Bytes>(fs::file_size(saved / file)), kLimit + 4096) << "with its header";
    EXPECT_EQ(state::open_safetensors(saved / file).metadata.at("format"), "pt");
  }
  models::Llama again = LlamaFiles::open(ModelFiles(saved))->load(BaseWeights::Fp32);
  const auto read = again->named_parameters();
  for (const auto& p : experiment.model().named_parameters())
    EXPECT_TRUE(at::equal(read[p.key()], p.value())) << p.key();

  save_trained(experiment, folder / "out", {.shard = 2 * kLimit});  // fewer of them
  EXPECT_EQ(std::distance(fs::directory_iterator(saved), fs::directory_iterator()), 2 + 1 + 2);
  EXPECT_NO_THROW((void)LlamaFiles::open(ModelFiles(saved))->load(BaseWeights::Fp32));
  save_trained(experiment, folder / "out");
  EXPECT_EQ(std::distance(fs::directory_iterator(saved), fs::directory_iterator()), 1 + 2);
}

const models::BertOptions kBert{.layers = 1,
                                .width = 32,
                                .inner_width = 64,
                                .heads = 2,
                                .vocabulary = 64,
                                .sequence = 16,
                                .dropout = 0,
                                .attention_dropout = 0};

TEST(SavedAdapter, OfAClassifierHasItsHead) {
  const fs::path folder = scratch("saved_model/classifier");
  const at::NoGradGuard no_grad;
  torch::manual_seed(1);
  models::BertClassifier model(kBert, 3);
  add_lora(*model, {.targets = {"query", "value"}, .rank = 2});
  for (const auto& [name, parameter] : models::lora_parameters(*model)) at::Tensor(parameter).normal_();
  for (const auto& [name, parameter] : models::whole_modules(*model)) at::Tensor(parameter).normal_();
  save_adapter(*model, "tiny-bert", folder);
  const auto config = nlohmann::json::parse(read_text(folder / "adapter_config.json"));
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_EQ(config["modules_to_save"], nlohmann::json({"classifier"}));
  EXPECT_EQ(config["target_modules"], nlohmann::json({"query", "value"}));
  EXPECT_TRUE(state::open_safetensors(folder / "adapter_model.safetensors")
                  .tensors.contains("base_model.model.classifier.bias"));

  torch::manual_seed(1);
  models::BertClassifier again(kBert, 3);
  load_adapter(*again, folder);
  const models::BertInput text{.tokens = torch::arange(12).view({2, 6})};
  EXPECT_TRUE(at::equal(again->forward(text), model->forward(text)));
  models::BertClassifier other(kBert, 4);
  const std::string said = snug::testing::fault([&] { load_adapter(*other, folder); });
  EXPECT_THAT(said, HasSubstr("classifier.weight (4x32 in the model, 3x32 in the adapter)"));
  EXPECT_TRUE(models::lora_parameters(*other).empty());
}

TEST(SavedAdapter, OfGpt2SaysThatItsWeightsAreTransposed) {
  const fs::path folder = scratch("saved_model/gpt2");
  const at::NoGradGuard no_grad;
  const models::Gpt2Options tiny{
      .layers = 1, .width = 32, .inner_width = 64, .heads = 2, .vocabulary = 64, .sequence = 16};
  torch::manual_seed(1);
  models::Gpt2 model(tiny);
  model->eval();
  add_lora(*model, {.targets = {"c_attn"}, .rank = 2});
  for (const auto& [name, parameter] : models::lora_parameters(*model)) at::Tensor(parameter).normal_();
  save_adapter(*model, "tiny-gpt2", folder);
  const auto config = nlohmann::json::parse(read_text(folder / "adapter_config.json"));
  EXPECT_EQ(config["task_type"], "CAUSAL_LM");
  EXPECT_EQ(config["fan_in_fan_out"], true);
  EXPECT_TRUE(config["modules_to_save"].is_null());
  torch::manual_seed(1);
  models::Gpt2 again(tiny);
  again->eval();
  load_adapter(*again, folder);
  const at::Tensor tokens = torch::arange(12).view({2, 6});
  EXPECT_TRUE(at::equal(again->forward(tokens), model->forward(tokens)));
}

/// The norm at the end alone, which PEFT would take for all of them; and an adapter of the output projection, which
/// PEFT saves with its weights.
TEST(SavedAdapter, MeansInPeftTheModulesThatItMeansHere) {
  const fs::path folder = scratch("saved_model/ends");
  const at::NoGradGuard no_grad;
  const models::LlamaOptions tiny{.layers = 1,
                                  .width = 32,
                                  .inner_width = 64,
                                  .heads = 2,
                                  .key_heads = 1,
                                  .vocabulary = 64,
                                  .sequence = 16,
                                  .rotary = {.width = 16}};
  const auto make = [&] {
    torch::manual_seed(1);
    return models::Llama(tiny);
  };
  models::Llama model = make();
  add_lora(*model, {.targets = {"q_proj", "lm_head"}, .modules_to_save = {"norm"}, .rank = 2});
  for (const auto& [name, parameter] : models::lora_parameters(*model)) at::Tensor(parameter).normal_();
  for (const auto& [name, parameter] : models::whole_modules(*model)) at::Tensor(parameter).normal_();
  save_adapter(*model, "tiny-llama", folder);
  const auto config = nlohmann::json::parse(read_text(folder / "adapter_config.json"));
  EXPECT_EQ(config["modules_to_save"], nlohmann::json({"model.norm"}));

  const at::Tensor tokens = torch::arange(12).view({2, 6});
  const auto loads = [&] {
    models::Llama again = make();
    load_adapter(*again, folder);
    return at::equal(again->forward(tokens), model->forward(tokens));
  };
  EXPECT_TRUE(loads());
  auto stored = state::open_safetensors(folder / "adapter_model.safetensors").tensors;
  state::NamedTensors with_base;
  for (const auto& [name, tensor] : stored) with_base.emplace_back(name, tensor.read().clone());
  const at::Tensor head = *make()->named_parameters().find("lm_head.weight");
  with_base.emplace_back("base_model.model.lm_head.base_layer.weight", head);
  const auto write = [&] {
    state::write_safetensors(folder / "adapter_model.safetensors", {with_base.begin(), with_base.end()},
                             {{"format", "pt"}});
  };
  write();
  EXPECT_TRUE(loads());
  with_base.back().second = head + 1;
  write();
  EXPECT_THAT(snug::testing::fault([&] { loads(); }), HasSubstr("lm_head (whose own weights differ)"));
}

TEST(SavedAdapter, OfATiedEmbeddingHasTheOutputProjectionAsPeftStoresIt) {
  const fs::path folder = scratch("saved_model/tied");
  const at::NoGradGuard no_grad;
  const models::LlamaOptions tiny{.layers = 1,
                                  .width = 32,
                                  .inner_width = 64,
                                  .heads = 2,
                                  .key_heads = 1,
                                  .vocabulary = 64,
                                  .sequence = 16,
                                  .rotary = {.width = 16},
                                  .tied = true};
  const auto make = [&] {
    torch::manual_seed(1);
    return models::Llama(tiny);
  };
  models::Llama model = make();
  add_lora(*model, {.targets = {"q_proj"}, .modules_to_save = {"embed_tokens"}, .rank = 2});
  for (const auto& [name, parameter] : models::lora_parameters(*model)) at::Tensor(parameter).normal_();
  for (const auto& [name, parameter] : models::whole_modules(*model)) at::Tensor(parameter).normal_();
  save_adapter(*model, "tiny-llama", folder);
  auto config = nlohmann::json::parse(read_text(folder / "adapter_config.json"));
  EXPECT_EQ(config["ensure_weight_tying"], true);
  auto stored = state::open_safetensors(folder / "adapter_model.safetensors").tensors;
  const std::string head = "base_model.model.lm_head.weight", embedding = "base_model.model.model.embed_tokens.weight";
  EXPECT_TRUE(at::equal(stored.at(head).read(), stored.at(embedding).read()));

  const at::Tensor tokens = torch::arange(12).view({2, 6});
  const auto loads = [&] {
    models::Llama again = make();
    load_adapter(*again, folder);
    return at::equal(again->forward(tokens), model->forward(tokens));
  };
  EXPECT_TRUE(loads());
  const auto rewrite = [&](const char* key, const nlohmann::json& value) {
    config[key] = value;
    write_text(folder / "adapter_config.json", config.dump());
  };
  rewrite("modules_to_save", {"embed_tokens", "model.embed_tokens"});  // as PEFT names the module that it found itself
  EXPECT_TRUE(loads());
  rewrite("modules_to_save", {"lm_head", "model.embed_tokens"});
  EXPECT_TRUE(loads());

  // Trained apart, or changed.
  rewrite("ensure_weight_tying", false);
  EXPECT_THAT(snug::testing::fault([&] { loads(); }), HasSubstr("ensure_weight_tying=True"));
  rewrite("ensure_weight_tying", true);
  state::NamedTensors changed;
  for (const auto& [name, tensor] : stored) changed.emplace_back(name, tensor.read().clone());
  for (auto& [name, tensor] : changed) {
    if (name == head) tensor.add_(1);
  }
  state::write_safetensors(folder / "adapter_model.safetensors", {changed.begin(), changed.end()}, {{"format", "pt"}});
  EXPECT_THAT(snug::testing::fault([&] { loads(); }), HasSubstr("its two matrices differ"));
}

}  // namespace
}  // namespace snug::train
