#include "snug/data/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Match = SplitAtMatches::Match;

std::vector<std::string> split(const std::vector<PreTokenizerStep>& steps, std::string_view text) {
  std::vector<std::string> pieces;
  for (const std::string_view piece : PreTokenizer(steps).split(text)) pieces.emplace_back(piece);
  return pieces;
}

TEST(PreTokenizer, CutsAsGpt2Does) {
  const auto steps = PreTokenizer::named("gpt-2");
  EXPECT_THAT(split(steps, "We've 12 dogs,  truly!\n\n ok"),
              ElementsAre("We", "'ve", " 12", " dogs", ",", " ", " truly", "!", "\n\n", " ok"));
  EXPECT_THAT(split(steps, "Größe 東京 naïve"), ElementsAre("Größe", " 東京", " naïve"));
  EXPECT_THAT(split(steps, "tail   "), ElementsAre("tail", "   "));
  EXPECT_THAT(split(steps, ""), ElementsAre());
}

TEST(PreTokenizer, CutsAsLlama3Does) {
  const auto steps = PreTokenizer::named("llama-bpe");
  EXPECT_THAT(split(steps, "I'LL take 12345 (now)\r\n  x"),
              ElementsAre("I", "'LL", " take", " ", "123", "45", " (", "now", ")\r\n", " ", " x"));
}

TEST(PreTokenizer, DigitsOneByOneOrInRuns) {
  EXPECT_THAT(split({SplitDigits{true}}, "ab12c3"), ElementsAre("ab", "1", "2", "c", "3"));
  EXPECT_THAT(split({SplitDigits{false}}, "ab12c3"), ElementsAre("ab", "12", "c", "3"));
}

TEST(PreTokenizer, WhatBecomesOfAMatch) {
  const auto with = [](Match match, bool invert = false) {
    return split({SplitAtMatches{"-", match, invert}}, "the-final--countdown");
  };
  // The examples of Hugging Face's documentation of these behaviours.
  EXPECT_THAT(with(Match::Removed), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(with(Match::Isolated), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(with(Match::WithPrevious), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(with(Match::WithNext), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(with(Match::Removed, /*invert=*/true), ElementsAre("-", "-", "-"));
}

TEST(PreTokenizer, PlacesBetweenCharactersCutToo) {
  EXPECT_THAT(split({SplitAtMatches{R"((?=(\d{3})+(?!\d)))"}}, "1234567"), ElementsAre("1", "234", "567"));
  EXPECT_THAT(split({SplitAtMatches{R"((?=[A-ZÄ]))"}}, "oneTwoÄß"), ElementsAre("one", "Two", "Äß"));
}

TEST(PreTokenizer, APatternThatSetsItsMatchBackEnds) {
  std::string pieces;
  try {
    for (const std::string& piece : split({SplitAtMatches{R"((?(DEFINE)(?<k>a\K))(?=(?&k)))"}}, "ab")) pieces += piece;
    EXPECT_EQ(pieces, "ab");
  } catch (const Error&) {  // or the library refuses it
  }
}

TEST(PreTokenizer, ALongWordNeedsNoStack) {
  const std::string word(200'000, 'a');
  EXPECT_THAT(split({SplitAtMatches{R"((?:\p{L}\p{M}*)+)"}}, word), ElementsAre(word));
}

TEST(PreTokenizer, AClassInAClassIsRefused) {
  EXPECT_THROW(split({SplitAtMatches{R"([^(\s|[.,])]+)"}}, "a"), UsageError);
  EXPECT_THROW(split({SplitAtMatches{R"([\p{L}&&[^a]])"}}, "a"), UsageError);
  EXPECT_THAT(split({SplitAtMatches{R"([[:digit:]\]\[]+)"}}, "a1]["), ElementsAre("a", "1]["));
}

TEST(PreTokenizer, BytesThatAreNoUtf8StayWithWhatIsAroundThem) {
  const std::string text = "ab\xff\xfe cd\xc3";
  std::string again;
  for (const std::string& piece : split(PreTokenizer::named("gpt-2"), text)) again += piece;
  EXPECT_EQ(again, text);
}

TEST(PreTokenizer, WrongPatternsAndNamesSayWhatIsWrong) {
  try {
    PreTokenizer({SplitAtMatches{"a(b"}});
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("a(b does not compile: missing closing parenthesis at 3"));
  }
  try {
    PreTokenizer::named("gpt2");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("\"gpt2\""));
    EXPECT_THAT(error.what(), HasSubstr("llama-bpe"));
  }
}

}  // namespace
}  // namespace snug::data
