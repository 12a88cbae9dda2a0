// Tokenizers against the reference implementations, on files that make_references.py wrote.
#include "snug/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "snug/base/errors.h"
#include "snug/data/byte_pair.h"
#include "snug/data/sentence_piece.h"
#include "snug/data/tokenizer_format.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const nlohmann::json& token_references() {
  static const nlohmann::json all = nlohmann::json::parse(std::ifstream(beside("tokens.json")));
  return all;
}

class TokenizerParity : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerParity, GivesTheReferencesIds) {
  const std::string name = GetParam();
  const bool sentence_piece = token_references()["decoded"].contains(name);
  const auto tokenizer = open_tokenizer(beside(name + (sentence_piece ? ".model" : ".json")));
  const auto strings = token_references()["strings"].get<std::vector<std::string>>();
  const auto ids = token_references()["ids"][name].get<std::vector<std::vector<TokenId>>>();
  ASSERT_EQ(strings.size(), ids.size());
  ASSERT_GT(strings.size(), 30U);
  for (std::size_t i = 0; i < strings.size(); ++i) {
    EXPECT_EQ(tokenizer->encode(strings[i]), ids[i]) << name << ": " << ::testing::PrintToString(strings[i]);
    const std::string text = sentence_piece ? token_references()["decoded"][name][i].get<std::string>() : strings[i];
    EXPECT_EQ(tokenizer->decode(ids[i]), text) << name;
    for (const TokenId id : ids[i]) EXPECT_LT(id, tokenizer->size());
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerParity, ::testing::Values("gpt2", "llama3", "smollm", "bpe", "unigram"),
                         [](const auto& each) { return std::string(each.param); });

TEST(Tokenizer, WhatContinuesATextKeepsItsBlank) {
  for (const char* name : {"gpt2.json", "bpe.model", "unigram.model"}) {
    const auto tokenizer = open_tokenizer(beside(name));
    const std::vector<TokenId> given = tokenizer->encode("the cat"), whole = tokenizer->encode("the cat the ends");
    ASSERT_TRUE(std::equal(given.begin(), given.end(), whole.begin())) << name;
    const std::vector<TokenId> more(whole.begin() + static_cast<std::ptrdiff_t>(given.size()), whole.end());
    EXPECT_EQ(decode_after(*tokenizer, given, more), " the ends") << name;
    EXPECT_EQ(decode_after(*tokenizer, given, {}), "") << name;
    EXPECT_EQ(decode_after(*tokenizer, {}, whole), "the cat the ends") << name;
  }
}

TEST(Tokenizer, BytesThatAreNoUtf8ComeBackFromByteLevelOnes) {
  std::mt19937 random(5);
  for (const char* name : {"gpt2.json", "llama3.json", "smollm.json"}) {
    const auto tokenizer = open_tokenizer(beside(name));
    for (int i = 0; i < 100; ++i) {
      std::string text(random() % 60, '\0');
      for (char& c : text) c = random() % 2 == 0 ? static_cast<char>(random() % 256) : " the1\xc3\xa4\n"[random() % 8];
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
  }
}

TEST(Tokenizer, BytesAreTheirOwnTokens) {
  const auto tokenizer = open_tokenizer("bytes");
  EXPECT_TRUE(tokenizer->of_bytes());
  EXPECT_THAT(tokenizer->encode(std::string_view("a\0\xff", 3)), ElementsAre('a', 0, 255));
  EXPECT_EQ(tokenizer->decode({'a', 0, 255}), std::string("a\0\xff", 3));
  EXPECT_EQ(tokenizer->size(), 256);
  EXPECT_THROW((void)tokenizer->decode({256}), UsageError);
  EXPECT_THROW((void)tokenizer->decode({-1}), UsageError);
}

TEST(Tokenizer, FilesAreToldApartByTheirEnding) {
  EXPECT_NE(dynamic_cast<const BytePairTokenizer*>(open_tokenizer(beside("gpt2.json")).get()), nullptr);
  EXPECT_NE(dynamic_cast<const SentencePieceTokenizer*>(open_tokenizer(beside("bpe.model")).get()), nullptr);
  try {
    (void)open_tokenizer("vocabulary.txt");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("vocabulary.txt is of no known format; name one of bytes, a SentencePiece .model, a tokenizer.json, "
                  "a GGUF file"));
  }
}

}  // namespace
}  // namespace snug::data
