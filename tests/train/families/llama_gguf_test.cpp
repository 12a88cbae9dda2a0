#include "snug/train/families/llama_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "tests/base/fault.h"

namespace snug::train {
namespace {

using snug::testing::fault;
using ::testing::HasSubstr;

GgufValue integer(std::uint64_t value) { return value; }

state::Gguf small() {
  state::Gguf gguf;
  gguf.header.metadata = {{"general.architecture", "llama"},          {"llama.block_count", integer(2)},
                          {"llama.embedding_length", integer(32)},    {"llama.feed_forward_length", integer(64)},
                          {"llama.attention.head_count", integer(4)}, {"llama.context_length", integer(128)}};
  gguf.tensors.emplace("token_embd.weight", state::StoredTensor{at::kFloat, {300, 32}, [] { return at::Tensor(); }});
  return gguf;
}

models::LlamaOptions options(const std::map<std::string, GgufValue>& more) {
  state::Gguf gguf = small();
  for (const auto& [key, value] : more) gguf.header.metadata.insert_or_assign(key, value);
  return llama_options_of_gguf(gguf, GgufFields(gguf.header.metadata, {.name = "f.gguf", .cure = "repair it"}));
}

TEST(LlamaGguf, KeysThatAreNotThereHaveDefaults) {
  const models::LlamaOptions o = options({});
  EXPECT_EQ(o.key_heads, 4);
  EXPECT_EQ(o.rotary.base, 10000);
  EXPECT_EQ(o.rotary.width, 8);
  EXPECT_EQ(o.vocabulary, 300);
  EXPECT_TRUE(o.tied);
  EXPECT_TRUE(std::holds_alternative<models::NoScaling>(o.rotary.scaling));
}

TEST(LlamaGguf, AHeadIsAsWideAsItsKeys) {
  const char *const keys = "llama.attention.key_length", *const rotated = "llama.rope.dimension_count";
  EXPECT_EQ(options({{keys, integer(16)}}).rotary.width, 16);
  EXPECT_EQ(options({{keys, integer(16)}, {rotated, integer(16)}}).rotary.width, 16);
  EXPECT_EQ(options({{rotated, integer(16)}}).rotary.width, 16);
  EXPECT_THAT(fault([&] {
                (void)options({{keys, integer(16)}, {rotated, integer(8)}});
              }),
              HasSubstr("llama.rope.dimension_count is 8; it must be 16, which is llama.attention.key_length"));
  EXPECT_THAT(fault([] {
                (void)options({{"llama.attention.value_length", integer(4)}});
              }),
              HasSubstr("value_length is 4; it must be 8, as keys have it"));
}

TEST(LlamaGguf, MixturesOfExpertsAreRefusedByName) {
  EXPECT_THAT(fault([] {
                (void)options({{"llama.expert_count", integer(8)}});
              }),
              HasSubstr("llama.expert_count is 8; it must be 0: mixtures of experts are not known"));
  EXPECT_EQ(options({{"llama.expert_count", integer(0)}}).layers, 2);
}

TEST(LlamaGguf, NumbersMayBeIntegersToo) {
  EXPECT_EQ(options({{"llama.rope.freq_base", integer(500000)}}).rotary.base, 500000);
  EXPECT_EQ(options({{"llama.rope.freq_base", 500000.0}}).rotary.base, 500000);
}

TEST(LlamaGguf, AFactorAloneIsLinear) {
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    const models::RotaryScaling scaling = options({{key, 4.0}}).rotary.scaling;
    ASSERT_TRUE(std::holds_alternative<models::LinearScaling>(scaling)) << key;
    EXPECT_EQ(std::get<models::LinearScaling>(scaling).factor, 4);
  }
  const auto none = options({{"llama.rope.scaling.type", "none"}, {"llama.rope.scaling.factor", 4.0}});
  EXPECT_TRUE(std::holds_alternative<models::NoScaling>(none.rotary.scaling));
}

TEST(LlamaGguf, YarnHasItsSettings) {
  std::map<std::string, GgufValue> keys{{"llama.rope.scaling.type", "yarn"},
                                        {"llama.rope.scaling.factor", 4.0},
                                        {"llama.rope.scaling.original_context_length", integer(32)}};
  const auto yarn = [&] { return std::get<models::YarnScaling>(options(keys).rotary.scaling); };
  EXPECT_EQ(yarn().trained_length, 32);
  EXPECT_EQ(yarn().fast_rotations, 32);
  EXPECT_EQ(yarn().slow_rotations, 1);
  EXPECT_FALSE(yarn().attention_factor);
  keys["llama.rope.scaling.yarn_beta_fast"] = 16.0;
  keys["llama.rope.scaling.yarn_beta_slow"] = 2.0;
  keys["llama.rope.scaling.yarn_log_multiplier"] = 0.5;
  keys["llama.rope.scaling.yarn_ext_factor"] = 1.0;
  EXPECT_EQ(yarn().fast_rotations, 16);
  EXPECT_EQ(yarn().slow_rotations, 2);
  EXPECT_EQ(yarn().attention_factor, models::yarn_temperature(4) / models::yarn_temperature(4, 0.5));
  for (const char* key : {"yarn_ext_factor", "yarn_attn_factor", "attn_factor"}) {
    auto other = keys;
    other["llama.rope.scaling." + std::string(key)] = 0.5;
    EXPECT_THAT(fault([&] { (void)options(other); }), HasSubstr("llama.rope.scaling." + std::string(key)));
  }
}

TEST(LlamaGguf, AValueOfAnotherTypeIsRefusedAndNoDefaultTakesItsPlace) {
  const auto refused = [](const char* key, const GgufValue& value) {
    return fault([&] { (void)options({{key, value}}); });
  };
  EXPECT_THAT(refused("llama.rope.freq_base", "many"),
              HasSubstr("f.gguf: its llama.rope.freq_base is \"many\"; it must be a number, more than 0; repair it"));
  EXPECT_THAT(refused("llama.attention.head_count_kv", std::vector<std::uint64_t>{4, 2}),
              HasSubstr("head_count_kv is a list of 2; it must be an integer"));
  EXPECT_THAT(refused("llama.block_count", integer(0)), HasSubstr("its llama.block_count is 0; it must be"));
  EXPECT_THAT(refused("general.architecture", integer(1)), HasSubstr("its general.architecture is 1; it must be text"));
  EXPECT_THAT(refused("general.architecture", "qwen2"), HasSubstr("is \"qwen2\"; it must be \"llama\""));
  EXPECT_THAT(refused("llama.rope.scaling.type", "longrope"),
              HasSubstr("is \"longrope\"; it must be one of \"none\", \"linear\", \"yarn\""));
}

TEST(LlamaGguf, WhatHasToBeThereIsNamed) {
  const state::Gguf nothing;
  EXPECT_THAT(fault([&] { (void)llama_options_of_gguf(nothing, GgufFields(nothing.header.metadata, {.name = "f"})); }),
              HasSubstr("f: it has no general.architecture, which must be text"));
}

}  // namespace
}  // namespace snug::train
