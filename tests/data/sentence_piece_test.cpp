#include "snug/data/sentence_piece.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/text_file.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SentencePiece, KnowsItsTokens) {
  const auto tokenizer = SentencePieceTokenizer::open(beside("bpe.model"));
  EXPECT_EQ(tokenizer.size(), 520);
  EXPECT_EQ(tokenizer.unknown_token(), 0);
  EXPECT_EQ(tokenizer.begin_token(), 1);
  EXPECT_EQ(tokenizer.end_token(), 2);
  EXPECT_EQ(tokenizer.find("<s>"), 1);
  EXPECT_EQ(tokenizer.find("<unk>"), 0);
  EXPECT_EQ(tokenizer.find("<0x00>"), 4);
  EXPECT_EQ(tokenizer.find("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.find(""), std::nullopt);
}

TEST(SentencePiece, PutsTokensAroundATextWhenAsked) {
  const auto plain = SentencePieceTokenizer::open(beside("bpe.model"));
  const auto both = SentencePieceTokenizer::open(beside("bpe.model"), {.begin = true, .end = true});
  std::vector<TokenId> ids = plain.encode("the fox");
  ids.insert(ids.begin(), 1);
  ids.push_back(2);
  EXPECT_EQ(both.encode("the fox"), ids);
  EXPECT_EQ(both.decode(ids), "the fox");
  EXPECT_THAT(plain.encode(""), IsEmpty());
  EXPECT_EQ(plain.decode({}), "");
}

TEST(SentencePiece, ReadsBytesThatAreNoUtf8AsReplacementCharacters) {
  const auto tokenizer = SentencePieceTokenizer::open(beside("bpe.model"));
  EXPECT_EQ(tokenizer.encode("a\xff\xc3"), tokenizer.encode("a\xef\xbf\xbd\xef\xbf\xbd"));
  // Tokens of single bytes that make no character together.
  const TokenId lead = *tokenizer.find("<0xC3>"), tail = *tokenizer.find("<0xA9>");
  EXPECT_EQ(tokenizer.decode({lead, tail}), "é");
  EXPECT_EQ(tokenizer.decode({tail}), "\xef\xbf\xbd");
}

TEST(SentencePiece, FallsBackToBytesOrToTheUnknownToken) {
  const auto bytes = SentencePieceTokenizer::open(beside("bpe.model"));
  const auto unknown = SentencePieceTokenizer::open(beside("unigram.model"));
  EXPECT_EQ(bytes.decode(bytes.encode("\U0001F9FF")), "\U0001F9FF");
  const std::vector<TokenId> ids = unknown.encode("\U0001F9FF");
  EXPECT_NE(std::ranges::find(ids, *unknown.unknown_token()), ids.end());
}

TEST(SentencePiece, SharesAProcessWithLibTorchsProtobufAndThreads) {
  const auto tokenizer = SentencePieceTokenizer::open(beside("unigram.model"));
  const auto expected = tokenizer.encode("The quick brown fox");
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        EXPECT_EQ(tokenizer.encode("The quick brown fox"), expected);
        EXPECT_EQ(at::ones({4}).sum().item<double>(), 4);
      }
    });
  }
}

TEST(SentencePiece, Moves) {
  auto first = SentencePieceTokenizer::open(beside("bpe.model"));
  const auto second = std::move(first);
  EXPECT_EQ(second.size(), 520);
}

TEST(SentencePiece, SaysWhatIsWrong) {
  const auto fault = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const UsageError& error) {
      return error.what();
    }
    return "none";
  };
  const auto tokenizer = SentencePieceTokenizer::open(beside("bpe.model"));
  EXPECT_THAT(fault([&] { (void)tokenizer.decode({520}); }), HasSubstr("token 520 is none of 520"));
  EXPECT_THAT(fault([&] { (void)tokenizer.decode({-1}); }), HasSubstr("token -1 is none"));
  EXPECT_THAT(fault([] { (void)SentencePieceTokenizer::open("/nowhere/a.model"); }),
              HasSubstr("/nowhere/a.model cannot be read: No such file"));
  EXPECT_THAT(fault([] { (void)SentencePieceTokenizer::open("/"); }), HasSubstr("Is a directory"));
  EXPECT_THAT(fault([] { SentencePieceTokenizer("", "e.model"); }), HasSubstr("e.model is no SentencePiece model"));
  // Text in base64, as Llama 3's file of the same name has it.
  EXPECT_THAT(fault([] { SentencePieceTokenizer("IQ== 0\nIg== 1\n", "tokenizer.model"); }),
              HasSubstr("tokenizer.model"));
}

// Whatever the file holds, the library must not read out of bounds or end the process.
TEST(SentencePiece, DamageIsAnErrorOrAnotherTokenizerAndNoCrash) {
  int refused = 0, read = 0;
  for (const char* name : {"bpe.model", "unigram.model"}) {
    const std::string whole = read_text(beside(name));
    const auto attempt = [&](const std::string& bytes) {
      try {
        const SentencePieceTokenizer tokenizer(bytes, name);
        ++read;
        const auto ids = tokenizer.encode(
            "The \xef\xac\x81"
            "fox, 12 \xef\xbc\xa1 e\xcc\x81 \xe2\x91\xa0 <|end|>\n  \xff\xe6\x9d\xb1");
        (void)tokenizer.decode(ids);
      } catch (const UsageError&) {
        ++refused;
      }
    };
    for (std::size_t i = 0; i < whole.size(); i += 3) attempt(whole.substr(0, i));
    for (std::size_t i = 0; i < whole.size(); ++i) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i * 5 % 8)));
      attempt(damaged);
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(read, 100);
}

}  // namespace
}  // namespace snug::data
