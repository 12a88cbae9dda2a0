// Adapter folders of PEFT; tests/train has one that PEFT wrote.
#include "snug/state/peft_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "snug/base/errors.h"
#include "snug/state/safetensors.h"
#include "tests/base/scratch.h"

namespace snug::state {
namespace {

namespace fs = std::filesystem;
using snug::testing::scratch;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const fs::path kReference = fs::path(SNUG_TESTS) / "train" / "tiny_adapter";

nlohmann::json config_of(const fs::path& folder) {
  std::ifstream in(folder / "adapter_config.json");
  return nlohmann::json::parse(in);
}

TEST(PeftAdapter, OpensWhatPeftWrote) {
  const PeftAdapter adapter = open_peft_adapter(kReference);
  EXPECT_EQ(adapter.rank, 4);
  EXPECT_EQ(adapter.alpha, 8);
  EXPECT_FALSE(adapter.root_of_rank);
  EXPECT_THAT(adapter.modules(), ElementsAre("model.layers.0.mlp.down_proj", "model.layers.0.self_attn.q_proj",
                                             "model.layers.1.mlp.down_proj", "model.layers.1.self_attn.q_proj"));
  EXPECT_THAT(adapter.tensors.at("model.layers.1.mlp.down_proj.lora_A.weight").shape, ElementsAre(4, 64));
}

TEST(PeftAdapter, WritesWhatItReads) {
  const fs::path folder = scratch("peft_adapter/written");
  PeftAdapter adapter{.base = "tiny", .alpha = 5, .dropout = 0.25, .root_of_rank = true, .rank = 2, .targets = {"q"}};
  const at::Tensor down = torch::randn({2, 3}), up = torch::randn({4, 2});
  write_peft_adapter(folder, adapter, {{"a.q.lora_A.weight", down}, {"a.q.lora_B.weight", up}});
  EXPECT_TRUE(
      open_safetensors(folder / "adapter_model.safetensors").tensors.contains("base_model.model.a.q.lora_A.weight"));
  const PeftAdapter read = open_peft_adapter(folder);
  EXPECT_EQ(read.base, "tiny");
  EXPECT_EQ(read.alpha, 5);
  EXPECT_EQ(read.dropout, 0.25);
  EXPECT_TRUE(read.root_of_rank);
  EXPECT_EQ(read.rank, 2);
  EXPECT_THAT(read.targets, ElementsAre("q"));
  EXPECT_TRUE(read.tensors.at("a.q.lora_B.weight").read().equal(up));
}

TEST(PeftAdapter, ModulesThatWereTrainedWholeAreSavedAndReadAsPeftDoesIt) {
  const fs::path folder = scratch("peft_adapter/whole");
  const at::Tensor down = torch::randn({2, 3}), up = torch::randn({4, 2}), head = torch::randn({5, 4});
  write_peft_adapter(
      folder,
      {.rank = 2, .targets = {"q"}, .task_type = "SEQ_CLS", .fan_in_fan_out = true, .modules_to_save = {"classifier"}},
      {{"a.q.lora_A.weight", down}, {"a.q.lora_B.weight", up}, {"classifier.weight", head}});
  const nlohmann::json config = config_of(folder);
  EXPECT_EQ(config["modules_to_save"], nlohmann::json({"classifier"}));
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_EQ(config["fan_in_fan_out"], true);
  EXPECT_TRUE(
      open_safetensors(folder / "adapter_model.safetensors").tensors.contains("base_model.model.classifier.weight"));
  const PeftAdapter read = open_peft_adapter(folder);
  EXPECT_EQ(read.task_type, "SEQ_CLS");
  EXPECT_TRUE(read.fan_in_fan_out);
  EXPECT_THAT(read.modules_to_save, ElementsAre("classifier"));
  EXPECT_THAT(read.modules(), ElementsAre("a.q"));
  EXPECT_EQ(read.tensors.size(), 2U);
  ASSERT_EQ(read.whole.size(), 1U);
  EXPECT_TRUE(read.whole.at("classifier.weight").read().equal(head));
}

/// PEFT takes all modules whose names end in one of modules_to_save, wherever that begins.
TEST(PeftAdapter, ModulesAreMeantByAnyEndOfTheirNames) {
  const fs::path folder = scratch("peft_adapter/ends");
  const at::Tensor down = torch::randn({2, 3}), up = torch::randn({4, 2}), four = torch::randn({4});
  state::NamedSources tensors{{"m.0.q.lora_A.weight", down},
                              {"m.0.q.lora_B.weight", up},
                              {"m.0.input_layernorm.weight", four},
                              {"m.norm.weight", four}};
  write_peft_adapter(folder, {.rank = 2, .modules_to_save = {"norm"}}, tensors);
  const PeftAdapter read = open_peft_adapter(folder);
  EXPECT_THAT(read.modules_to_save, ElementsAre("m.0.input_layernorm", "m.norm"));
  EXPECT_EQ(read.whole.size(), 2U);
  EXPECT_THAT(read.modules(), ElementsAre("m.0.q"));
  tensors.erase(tensors.begin() + 2);
  write_peft_adapter(folder, {.rank = 2, .modules_to_save = {"norm"}}, tensors);
  EXPECT_THAT(open_peft_adapter(folder).modules_to_save, ElementsAre("norm")) << "which means the same at a dot";
}

TEST(PeftAdapter, TheWeightsOfAnAdaptedOutputProjectionAreKeptApart) {
  const fs::path folder = scratch("peft_adapter/base");
  const at::Tensor down = torch::randn({2, 3}), up = torch::randn({4, 2}), weight = torch::randn({4, 3});
  write_peft_adapter(
      folder, {.rank = 2},
      {{"lm_head.lora_A.weight", down}, {"lm_head.lora_B.weight", up}, {"lm_head.base_layer.weight", weight}});
  const PeftAdapter read = open_peft_adapter(folder);
  EXPECT_THAT(read.modules(), ElementsAre("lm_head"));
  EXPECT_EQ(read.tensors.size(), 2U);
  ASSERT_TRUE(read.bases.contains("lm_head"));
  EXPECT_TRUE(read.bases.at("lm_head").read().equal(weight));
  write_peft_adapter(folder, {.rank = 2}, {{"e.lora_embedding_A", down}, {"e.lora_embedding_B", up}});
  try {
    (void)open_peft_adapter(folder);
    FAIL() << "it was opened";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("e.lora_embedding_A is of an adapter of an embedding"));
  }
}

TEST(PeftAdapter, HasNoTaskWherePeftHasNone) {
  const fs::path folder = scratch("peft_adapter/no-task");
  write_peft_adapter(folder, {.rank = 2},
                     {{"q.lora_A.weight", torch::zeros({2, 3})}, {"q.lora_B.weight", torch::zeros({4, 2})}});
  EXPECT_TRUE(config_of(folder)["task_type"].is_null());
  EXPECT_TRUE(config_of(folder)["modules_to_save"].is_null());
}

/// What is said of PEFT's adapter with one setting changed.
std::string fault_with(const char* key, const nlohmann::json& value) {
  const fs::path folder = scratch("peft_adapter/changed");
  fs::copy(kReference, folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  nlohmann::json config = config_of(folder);
  config[key] = value;
  std::ofstream(folder / "adapter_config.json") << config;
  try {
    (void)open_peft_adapter(folder);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(PeftAdapter, RefusesWhatIsMoreThanProducts) {
  EXPECT_EQ(fault_with("lora_alpha", 3), "none");
  EXPECT_THAT(fault_with("use_dora", true), HasSubstr("its use_dora is true; it must be left out"));
  EXPECT_THAT(fault_with("bias", "all"), HasSubstr("its bias is \"all\"; it must be \"none\""));
  EXPECT_THAT(fault_with("peft_type", "IA3"), HasSubstr("its peft_type is \"IA3\""));
  EXPECT_THAT(fault_with("rank_pattern", {{"q_proj", 2}}), HasSubstr("rank_pattern"));
  EXPECT_THAT(fault_with("modules_to_save", {"lm_head"}),
              HasSubstr("it has no weights of lm_head, which is one of its modules_to_save"));
  EXPECT_THAT(fault_with("use_something_new", true), HasSubstr("its use_something_new is true"));
  EXPECT_THAT(fault_with("init_lora_weights", "pissa"), HasSubstr("its init_lora_weights is \"pissa\""));
  EXPECT_EQ(fault_with("init_lora_weights", "gaussian"), "none");
  EXPECT_THAT(fault_with("loftq_config", {{"bits", 4}}), HasSubstr("loftq_config"));
  EXPECT_THAT(fault_with("r", 5), HasSubstr("and the rank is 5"));
  EXPECT_THAT(fault_with("r", "five"), HasSubstr("its r is \"five\""));
}

TEST(PeftAdapter, RefusesHalfAPairAndNoFolder) {
  const fs::path folder = scratch("peft_adapter/half");
  write_peft_adapter(folder, {.rank = 2}, {{"a.lora_A.weight", torch::zeros({2, 3})}});
  EXPECT_THROW(open_peft_adapter(folder), UsageError);
  write_peft_adapter(folder, {.rank = 2}, {{"a.weight", torch::zeros({2, 3})}});
  EXPECT_THROW(open_peft_adapter(folder), UsageError);
  write_peft_adapter(folder, {.rank = 2}, {});
  EXPECT_THROW(open_peft_adapter(folder), UsageError);
  EXPECT_THROW(open_peft_adapter(folder / "nowhere"), UsageError);
  std::ofstream(folder / "adapter_config.json") << "[";
  EXPECT_THROW(open_peft_adapter(folder), UsageError);
}

}  // namespace
}  // namespace snug::state
