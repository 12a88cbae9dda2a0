#include "snug/data/byte_pair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// All bytes, then "he", "ll", "hell", "hello", " w", and two special tokens.
BytePairModel small_model() {
  BytePairModel model;
  for (int b = 0; b < 256; ++b) model.tokens.emplace_back(1, static_cast<char>(b));
  for (const auto& [left, right] : {std::pair{"h", "e"}, {"l", "l"}, {"he", "ll"}, {"hell", "o"}, {" ", "w"}}) {
    model.merges.emplace_back(left, right);
    model.tokens.push_back(std::string(left) + right);
  }
  for (const char* special : {"<end>", "<end><end>"}) {
    model.added.push_back({static_cast<TokenId>(model.tokens.size())});
    model.tokens.emplace_back(special);
  }
  model.pre_tokenizer = PreTokenizer::named("gpt-2");
  return model;
}

TEST(BytePair, MergesTheMostImportantPairFirst) {
  const BytePairTokenizer tokenizer(small_model());
  EXPECT_THAT(tokenizer.encode("hello world"), ElementsAre(259, 260, 'o', 'r', 'l', 'd'));
  EXPECT_THAT(tokenizer.encode("llll"), ElementsAre(257, 257));
  EXPECT_THAT(tokenizer.encode("lll"), ElementsAre(257, 'l'));  // the first of equals
  EXPECT_THAT(tokenizer.encode(""), ElementsAre());
}

TEST(BytePair, FindsSpecialTokensTheLongestFirst) {
  const BytePairTokenizer tokenizer(small_model());
  EXPECT_THAT(tokenizer.encode("he<end>he"), ElementsAre(256, 261, 256));
  EXPECT_THAT(tokenizer.encode("<end><end><end>"), ElementsAre(262, 261));
  EXPECT_THAT(tokenizer.encode("<end", Specials::Meant), ElementsAre('<', 'e', 'n', 'd'));
  EXPECT_EQ(tokenizer.encode("<end>", Specials::Ignored).size(), 5U);
  EXPECT_EQ(tokenizer.decode({256, 261, 256}), "he<end>he");
  EXPECT_EQ(tokenizer.decode({256, 261, 256}, Specials::Ignored), "hehe");
}

TEST(BytePair, PutsTheFirstTokenInFrontAndTakesWholeWords) {
  BytePairModel model = small_model();
  model.before = {261};
  model.after = {262};
  model.whole_words_first = true;
  model.tokens.emplace_back("world");
  const BytePairTokenizer tokenizer(std::move(model));
  EXPECT_THAT(tokenizer.encode("world"), ElementsAre(261, 263, 262));
}

TEST(BytePair, AddedTokensThatAreTextAreAlwaysFoundAndStay) {
  BytePairModel model = small_model();
  model.added.push_back({static_cast<TokenId>(model.tokens.size()), /*special=*/false});
  model.tokens.emplace_back("    ");
  const BytePairTokenizer tokenizer(std::move(model));
  EXPECT_THAT(tokenizer.encode("    he<end>", Specials::Ignored), ElementsAre(263, 256, '<', 'e', 'n', 'd', '>'));
  EXPECT_EQ(tokenizer.decode({263, 256, 261}, Specials::Ignored), "    he");
}

TEST(BytePair, AnyBytesComeBack) {
  const BytePairTokenizer tokenizer(small_model());
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string text(random() % 200, '\0');
    for (char& c : text) c = i % 2 == 0 ? static_cast<char>(random() % 256) : "hel o\n\t'sw<end>"[random() % 15];
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, Specials::Ignored)), text);
  }
}

TEST(BytePair, ALongWordTakesNoQuadraticTime) {
  const BytePairTokenizer tokenizer(small_model());
  const std::string word(1'000'000, 'l');  // seconds at worst; a scan for each merge would take hours
  EXPECT_EQ(tokenizer.encode(word).size(), 500'000U);
}

TEST(BytePair, MovesWithItsVocabulary) {
  BytePairTokenizer first(small_model());
  const BytePairTokenizer second = std::move(first);
  EXPECT_THAT(second.encode("hello"), ElementsAre(259));
  EXPECT_EQ(second.find("<end>"), 261);
  EXPECT_EQ(second.find("nothing"), std::nullopt);
}

TEST(BytePair, AVocabularyThatDoesNotFitItsMergesIsRefused) {
  BytePairModel model = small_model();
  model.merges.emplace_back("x", "y");
  EXPECT_THROW(BytePairTokenizer{std::move(model)}, UsageError);
  BytePairModel none = small_model();
  none.added.push_back({1000});
  EXPECT_THROW(BytePairTokenizer{std::move(none)}, UsageError);
  BytePairModel few;
  few.tokens = {"a"};
  few.pre_tokenizer = PreTokenizer::named("gpt-2");
  const BytePairTokenizer tokenizer(std::move(few));
  EXPECT_THAT(tokenizer.encode("aa"), ElementsAre(0, 0));
  EXPECT_THROW(tokenizer.encode("b"), UsageError);
  EXPECT_THROW(tokenizer.decode({7}), UsageError);
}

TEST(BytePair, NamesOfPrintableCharactersAreBytes) {
  EXPECT_EQ(bytes_of_printable("Ġthe"), " the");
  EXPECT_EQ(bytes_of_printable("Ċ"), "\n");
  EXPECT_EQ(bytes_of_printable("Ã¤"), "\xc3\xa4");
  EXPECT_EQ(bytes_of_printable("\xc4"), std::nullopt);
  EXPECT_EQ(bytes_of_printable("東"), std::nullopt);
  EXPECT_EQ(bytes_of_printable(" "), std::nullopt);
}

}  // namespace
}  // namespace snug::data
