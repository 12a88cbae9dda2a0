#include "snug/train/families/llama_gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "snug/train/gguf_tokenizer.h"
#include "tests/base/fault.h"

namespace snug::train {
namespace {

using snug::testing::fault;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

state::GgufValue integer(std::uint64_t value) { return value; }

state::Gguf small() {
  state::Gguf gguf;
  gguf.header.metadata = {{"general.architecture", "llama"},          {"llama.block_count", integer(2)},
                          {"llama.embedding_length", integer(32)},    {"llama.feed_forward_length", integer(64)},
                          {"llama.attention.head_count", integer(4)}, {"llama.context_length", integer(128)}};
  gguf.tensors.emplace("token_embd.weight", state::StoredTensor{at::kFloat, {300, 32}, [] { return at::Tensor(); }});
  return gguf;
}

models::LlamaOptions options(const std::map<std::string, state::GgufValue>& more) {
  state::Gguf gguf = small();
  for (const auto& [key, value] : more) gguf.header.metadata.insert_or_assign(key, value);
  return llama_options_of_gguf(gguf, "f.gguf");
}

TEST(GgufModel, KeysThatAreNotThereHaveDefaults) {
  const models::LlamaOptions o = options({});
  EXPECT_EQ(o.key_heads, 4);
  EXPECT_EQ(o.rotary.base, 10000);
  EXPECT_EQ(o.rotary.width, 8);
  EXPECT_EQ(o.vocabulary, 300);
  EXPECT_TRUE(o.tied);
  EXPECT_TRUE(std::holds_alternative<models::NoScaling>(o.rotary.scaling));
}

TEST(GgufModel, NumbersMayBeIntegersToo) {
  EXPECT_EQ(options({{"llama.rope.freq_base", integer(500000)}}).rotary.base, 500000);
  EXPECT_EQ(options({{"llama.rope.freq_base", 500000.0}}).rotary.base, 500000);
}

TEST(GgufModel, AFactorAloneIsLinear) {
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    const models::RotaryScaling scaling = options({{key, 4.0}}).rotary.scaling;
    ASSERT_TRUE(std::holds_alternative<models::LinearScaling>(scaling)) << key;
    EXPECT_EQ(std::get<models::LinearScaling>(scaling).factor, 4);
  }
  const auto none = options({{"llama.rope.scaling.type", "none"}, {"llama.rope.scaling.factor", 4.0}});
  EXPECT_TRUE(std::holds_alternative<models::NoScaling>(none.rotary.scaling));
}

TEST(GgufModel, AValueOfAnotherTypeIsRefusedAndNoDefaultTakesItsPlace) {
  const auto refused = [](const char* key, const state::GgufValue& value) {
    return fault([&] { (void)options({{key, value}}); });
  };
  EXPECT_THAT(refused("llama.rope.freq_base", "many"), HasSubstr("f.gguf: its llama.rope.freq_base is not one number"));
  EXPECT_THAT(refused("llama.attention.head_count_kv", std::vector<std::uint64_t>{4, 2}),
              HasSubstr("head_count_kv is not one integer"));
  EXPECT_THAT(refused("general.architecture", integer(1)), HasSubstr("is not text"));
  state::GgufHeader header;
  header.metadata = {{"tokenizer.ggml.add_bos_token", integer(1)}};
  EXPECT_THAT(fault([&] { (void)vocabulary_of_gguf(header, "f.gguf"); }), HasSubstr("is not true or false"));
}

TEST(GgufModel, NamesTheTokensThatEndATextAndWhetherOneBeginsIt) {
  state::GgufHeader header;
  EXPECT_EQ(vocabulary_of_gguf(header, "f").add_begin, std::nullopt);
  header.metadata = {{"tokenizer.ggml.eos_token_id", integer(7)},
                     {"tokenizer.ggml.eot_token_id", integer(9)},
                     {"tokenizer.ggml.add_bos_token", false}};
  EXPECT_THAT(ends_of_gguf(header, "f"), ElementsAre(7, 9));
  EXPECT_EQ(vocabulary_of_gguf(header, "f").add_begin, std::optional(false));
}

}  // namespace
}  // namespace snug::train
