#include "snug/data/gguf_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/base/fault.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// All bytes, " a" as a merge, an end that is special and a mark that is not.
GgufVocabulary small_vocabulary() {
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    // The printable ones stand for themselves, the others follow from U+0100 on.
    const bool own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    static int extra = 0;
    if (byte == 0) extra = 0;
    const int code = own ? byte : 256 + extra++;
    std::string name;
    if (code < 128) {
      name = static_cast<char>(code);
    } else {
      name = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    }
    v.tokens.push_back(name);
  }
  v.tokens.emplace_back(
      "\xC4\xA0"
      "a");
  v.merges.emplace_back(
      "\xC4\xA0"
      " a");
  v.tokens.emplace_back("<end>");
  v.tokens.emplace_back("<mark>");
  v.tokens.emplace_back("[unused 0]");
  v.types.assign(257, 1);
  v.types.insert(v.types.end(), {3, 4, 5});
  return v;
}

std::string vocabulary_fault(const GgufVocabulary& v) {
  return snug::testing::fault([&] { (void)byte_pair_model(v, "f"); });
}

TEST(GgufVocabulary, MakesATokenizer) {
  const BytePairTokenizer tokenizer(byte_pair_model(small_vocabulary(), "f"));
  EXPECT_EQ(tokenizer.size(), 260);
  EXPECT_THAT(tokenizer.encode("a a<end>"), ElementsAre('a', 256, 257));
  EXPECT_THAT(tokenizer.encode("<mark>\xff"), ElementsAre(258, 255));
  EXPECT_EQ(tokenizer.decode({'a', 256, 257, 258}, Specials::Ignored), "a a<mark>");
}

TEST(GgufVocabulary, PutsTheFirstTokenInFront) {
  GgufVocabulary v = small_vocabulary();
  v.begin = 257;
  v.add_begin = true;
  EXPECT_THAT(BytePairTokenizer(byte_pair_model(v, "f")).encode("a"), ElementsAre(257, 'a'));
  v.add_begin.reset();
  EXPECT_THAT(BytePairTokenizer(byte_pair_model(v, "f")).encode("a"), ElementsAre('a')) << "not said";
  v.pre = "llama-bpe";
  EXPECT_THAT(BytePairTokenizer(byte_pair_model(v, "f")).encode("a"), ElementsAre(257, 'a')) << "Llama 3's";
  v.add_begin = false;
  EXPECT_THAT(BytePairTokenizer(byte_pair_model(v, "f")).encode("a"), ElementsAre('a'));
  v.add_begin = true;
  v.begin = 5000;
  EXPECT_THAT(vocabulary_fault(v), HasSubstr("names none"));
}

TEST(GgufVocabulary, WhatIsNotWholeIsRefused) {
  const auto with = [](const auto& change) {
    GgufVocabulary v = small_vocabulary();
    change(v);
    return vocabulary_fault(v);
  };
  EXPECT_EQ(vocabulary_fault(small_vocabulary()), "none");
  EXPECT_THAT(with([](auto& v) { v.model = "llama"; }), HasSubstr("of kind \"llama\""));
  EXPECT_THAT(with([](auto& v) { v.pre = "unheard-of"; }), HasSubstr("unheard-of"));
  EXPECT_THAT(with([](auto& v) { v.tokens.clear(); }), HasSubstr("no tokens"));
  EXPECT_THAT(with([](auto& v) { v.types.pop_back(); }), HasSubstr("260 tokens and types for 259"));
  EXPECT_THAT(with([](auto& v) { v.merges[0] = "lonely"; }), HasSubstr("is no pair"));
  EXPECT_THAT(with([](auto& v) { v.merges[0] = "\xE4\xB8\xAD a"; }), HasSubstr("is not of bytes"));
  EXPECT_THAT(with([](auto& v) { v.types[259] = 1; }), HasSubstr("token 259"));
}

GgufVocabulary of_metadata(const GgufMetadata& metadata) {
  return vocabulary_of_gguf(GgufFields(metadata, {.name = "f.gguf", .cure = "repair it"}));
}

TEST(GgufVocabulary, IsReadFromMetadata) {
  const GgufVocabulary v = of_metadata({{"tokenizer.ggml.model", "gpt2"},
                                        {"tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"}},
                                        {"tokenizer.ggml.token_type", std::vector<std::int64_t>{1, 3}},
                                        {"tokenizer.ggml.bos_token_id", std::uint64_t{1}},
                                        {"tokenizer.ggml.add_bos_token", false},
                                        {"tokenizer.ggml.eos_token_id", std::uint64_t{7}},
                                        {"tokenizer.ggml.eot_token_id", std::uint64_t{9}}});
  EXPECT_EQ(v.model, "gpt2");
  EXPECT_THAT(v.tokens, ElementsAre("a", "b"));
  EXPECT_THAT(v.types, ElementsAre(1, 3));
  EXPECT_EQ(v.begin, std::optional<TokenId>(1));
  EXPECT_EQ(v.add_begin, std::optional(false));
  EXPECT_THAT(v.ends, ElementsAre(7, 9));
  EXPECT_EQ(of_metadata({}).add_begin, std::nullopt);
  EXPECT_THAT(snug::testing::fault([] {
                (void)of_metadata({{"tokenizer.ggml.add_bos_token", std::uint64_t{1}}});
              }),
              HasSubstr("f.gguf: its tokenizer.ggml.add_bos_token is 1; it must be true or false; repair it"));
}

TEST(GgufVocabulary, HasTheEndThatItsOwnFileNames) {
  GgufVocabulary v = small_vocabulary();
  EXPECT_EQ(BytePairTokenizer(byte_pair_model(v, "f")).end_token(), std::nullopt);
  v.ends = {257, 258};
  EXPECT_EQ(BytePairTokenizer(byte_pair_model(v, "f")).end_token(), std::optional<TokenId>(257));
  v.ends = {260};
  EXPECT_EQ(BytePairTokenizer(byte_pair_model(v, "f")).end_token(), std::nullopt) << "none of its tokens";
}

}  // namespace
}  // namespace snug::data
