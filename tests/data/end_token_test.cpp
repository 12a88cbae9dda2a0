// The token that ends a text, from the places where tokenizers have it.
#include "snug/data/end_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "snug/data/byte_pair.h"
#include "snug/data/byte_tokenizer.h"
#include "snug/data/sentence_piece.h"
#include "tests/base/fault.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using snug::testing::fault;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Every byte, and one special token behind them.
BytePairTokenizer pairs() {
  BytePairModel model;
  for (int b = 0; b < 256; ++b) model.tokens.emplace_back(1, static_cast<char>(b));
  model.tokens.emplace_back("<|end|>");
  model.added = {{.id = 256}};
  return BytePairTokenizer(std::move(model));
}

SentencePieceTokenizer sentence_piece() {
  return SentencePieceTokenizer::open(std::filesystem::path(SNUG_TESTS) / "data" / "bpe.model");
}

TEST(EndToken, IsTheOneThatTransformersKeepsBesideTheTokenizer) {
  const TemporaryFolder folder("end_token");
  const auto told = [&](const std::string& config) {
    (void)folder.write("tokenizer_config.json", config);
    return end_token(pairs(), folder.path());
  };
  EXPECT_EQ(told(R"({"eos_token": "<|end|>", "chat_template": "..."})"), 256);
  EXPECT_EQ(told(R"({"eos_token": {"content": "<|end|>", "special": true}})"), 256);
  EXPECT_EQ(told(R"({"eos_token": null})"), std::nullopt);
  EXPECT_EQ(told("{}"), std::nullopt);
  (void)folder.write("tokenizer_config.json", R"({"eos_token": "<s>"})");
  EXPECT_EQ(end_token(sentence_piece(), folder.path()), 1) << "said so, it is not the model's own";
}

TEST(EndToken, IsElseTheModelsOwn) {
  const TemporaryFolder folder("end_token");
  EXPECT_EQ(end_token(sentence_piece(), folder.path()), 2);
  EXPECT_EQ(end_token(pairs(), folder.path()), std::nullopt);
  EXPECT_EQ(end_token(ByteTokenizer(), folder.path()), std::nullopt);
}

TEST(EndToken, OfAnotherTokenizerIsRefused) {
  const TemporaryFolder folder("end_token");
  const auto said = [&](const std::string& config) {
    (void)folder.write("tokenizer_config.json", config);
    return fault([&] { (void)end_token(pairs(), folder.path()); });
  };
  EXPECT_THAT(said(R"({"eos_token": "</s>"})"),
              AllOf(HasSubstr("tokenizer_config.json"), HasSubstr("\"</s>\" is none")));
  EXPECT_THAT(said(R"({"eos_token": 3})"), HasSubstr("its eos_token is 3"));
  EXPECT_THAT(said("["), HasSubstr("no JSON"));
}

}  // namespace
}  // namespace snug::data
