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

}  // namespace
}  // namespace snug::data
