#include "snug/data/tokenize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/cpu_memory.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Ids all_ids(const TokenCorpus& corpus) { return ids_at(corpus, 0, corpus.size()); }

std::vector<TokenId> bytes_of(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string lines(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += (i % 5 == 0 ? "\n\n  word " : i % 5 == 1 ? "\n\nwort \nund " : "größer ") + std::to_string(i) + "\n";
  return text;
}

TEST(Tokenize, PutsTokensAroundDocuments) {
  const TemporaryFolder folder("tokenize");
  (void)folder.write("a", "xy");
  (void)folder.write("b", "z");
  const TextCorpus text = TextCorpus::open(folder.path());
  const TokenCorpus corpus = tokenize(text, bytes_of, {.before = 1000, .after = 1001});
  EXPECT_THAT(all_ids(corpus), ElementsAre(1000, 'x', 'y', 1001, 1000, 'z', 1001));
  EXPECT_THAT(corpus.documents(), ElementsAre(0, 4));
  EXPECT_THAT(tokenize(text, bytes_of).documents(), ElementsAre(0, 2));
}

TEST(Tokenize, ADocumentThatEndsSoAlreadyIsNotEndedTwice) {
  const TemporaryFolder folder("tokenize");
  (void)folder.write("a", "x$");
  (void)folder.write("b", "y$z");
  const TokenCorpus corpus = tokenize(TextCorpus::open(folder.path()), bytes_of, {.piece = 1, .after = '$'});
  EXPECT_THAT(all_ids(corpus), ElementsAre('x', '$', 'y', '$', 'z', '$'));
}

TEST(Tokenize, DoesNotDependOnThreads) {
  const TemporaryFolder folder("tokenize");
  for (int i = 0; i < 5; ++i) (void)folder.write(std::to_string(i), lines(200 * i + 1));
  const TextCorpus text = TextCorpus::open(folder.path());
  // A first token for each piece shows where they begin.
  const auto encode = [](std::string_view piece) {
    auto ids = bytes_of(piece);
    ids.insert(ids.begin(), 256);
    return ids;
  };
  const TokenCorpus one = tokenize(text, encode, {.threads = 1, .piece = 300});
  for (const int threads : {2, 3, 8}) {
    const TokenCorpus more = tokenize(text, encode, {.threads = threads, .piece = 300});
    EXPECT_EQ(all_ids(one), all_ids(more));
    EXPECT_TRUE(std::ranges::equal(one.documents(), more.documents()));
  }
  EXPECT_EQ(one.documents().size(), 5U);
  EXPECT_GT(std::ranges::count(all_ids(one), 256), 50);
}

TEST(Tokenize, PiecesEndWhereLinesDo) {
  const TemporaryFolder folder("tokenize");
  const std::string whole = lines(300);
  const TextCorpus text = TextCorpus::open(folder.write("t", whole));
  std::mutex mutex;
  std::vector<std::string> pieces;
  (void)tokenize(text,
                 [&](std::string_view piece) {
                   const std::lock_guard lock(mutex);
                   pieces.emplace_back(piece);
                   return bytes_of(piece);
                 },
                 {.piece = 100});
  std::string joined;
  for (const std::string& piece : pieces) {
    EXPECT_LE(piece.size(), 100U);
    EXPECT_EQ(piece.back(), '\n');
    EXPECT_TRUE(joined.empty() || (piece.front() != ' ' && piece.front() != '\n')) << piece;
    joined += piece;
  }
  EXPECT_EQ(joined, whole);
  EXPECT_GT(pieces.size(), 20U);
}

TEST(Tokenize, WithoutLinesPiecesEndBetweenCharacters) {
  const TemporaryFolder folder("tokenize");
  std::string whole;
  for (int i = 0; i < 50; ++i) whole += "東€é";
  std::string joined;
  (void)tokenize(TextCorpus::open(folder.write("t", whole)),
                 [&](std::string_view piece) {
                   EXPECT_NE(static_cast<unsigned char>(piece.front()) & 0xC0, 0x80);
                   EXPECT_LE(piece.size(), 10U);
                   joined += piece;
                   return bytes_of(piece);
                 },
                 {.piece = 10});
  EXPECT_EQ(joined, whole);
  // What is no text is cut all the same, down to single bytes.
  const std::string noise(1000, '\x80');
  for (const Bytes piece : {1, 2, 7}) {
    EXPECT_EQ(tokenize(TextCorpus::open(folder.write("n", noise)), bytes_of, {.piece = piece}).size(), 1000);
  }
}

TEST(Tokenize, PiecesGiveTheTokensOfTheWholeText) {
  BytePairModel model;
  for (int b = 0; b < 256; ++b) model.tokens.emplace_back(1, static_cast<char>(b));
  for (const auto& [left, right] : {std::pair{"\n", "\n"}, {"\n\n", " "}, {" ", "w"}, {" ", " "}, {"g", "r"}}) {
    model.merges.emplace_back(left, right);
    model.tokens.push_back(std::string(left) + right);
  }
  for (const char* rules : {"gpt-2", "llama-bpe", "smollm"}) {
    model.pre_tokenizer = PreTokenizer::named(rules);
    const BytePairTokenizer tokenizer{BytePairModel(model)};
    const TemporaryFolder folder("tokenize");
    const std::string whole = lines(300);
    const TokenCorpus corpus =
        tokenize(TextCorpus::open(folder.write("t", whole)),
                 [&](std::string_view text) { return tokenizer.encode(text); }, {.threads = 2, .piece = 64});
    EXPECT_EQ(all_ids(corpus), tokenizer.encode(whole)) << rules;
  }
}

/// Where the vocabulary has an entry for the ends of lines: it is taken at the end of a piece, and in front of a word
/// it is not.
TEST(Tokenize, PiecesOfLinesThatEndInTwoBytesGiveTheTokensOfTheWholeText) {
  BytePairModel model;
  for (int b = 0; b < 256; ++b) model.tokens.emplace_back(1, static_cast<char>(b));
  for (const char* end : {"\r\n", "\n\n"}) {
    model.merges.emplace_back(std::string(1, end[0]), std::string(1, end[1]));
    model.tokens.emplace_back(end);
  }
  std::string windows, paragraphs;
  for (int i = 0; i < 3000; ++i) {
    windows += "the rain.\r\n";
    paragraphs += "the rain, and the sun.\n\n";
  }
  for (const char* rules : {"gpt-2", "llama-bpe", "smollm"}) {
    model.pre_tokenizer = PreTokenizer::named(rules);
    const BytePairTokenizer tokenizer{BytePairModel(model)};
    const auto encode = [&](std::string_view text) { return tokenizer.encode(text); };
    for (const std::string& whole : {windows, paragraphs}) {
      const TemporaryFolder folder("tokenize");
      const TokenCorpus corpus = tokenize(TextCorpus::open(folder.write("t", whole)), encode, {.piece = 4096});
      EXPECT_EQ(all_ids(corpus), tokenizer.encode(whole)) << rules << " " << whole.substr(0, 12);
    }
  }
}

TEST(Tokenize, IsCountedAsStagingAndTakesFourBytesAToken) {
  const TemporaryFolder folder("tokenize");
  const TextCorpus text = TextCorpus::open(folder.write("t", lines(20'000)));
  auto& memory = memory::CpuMemory::instance();
  const auto staging = [&] { return memory.stats().by_tag[static_cast<std::size_t>(memory::Tag::Staging)]; };
  const Bytes before = staging();
  const TokenCorpus corpus = tokenize(text, bytes_of, {.threads = 2});
  const Bytes taken = staging() - before;
  EXPECT_GE(taken, corpus.size() * 4);
  EXPECT_LE(taken, corpus.size() * 4 + 8192);  // a page and a header
}

TEST(Tokenize, SaysTheFirstThingThatIsWrong) {
  const TemporaryFolder folder("tokenize");
  const TextCorpus text = TextCorpus::open(folder.write("t", lines(2000)));
  const auto fails = [](std::string_view piece) -> std::vector<TokenId> {
    if (piece.find(" 500\n") != std::string_view::npos) throw Error("at 500");
    if (piece.find(" 1900\n") != std::string_view::npos) throw Error("at 1900");
    return {1};
  };
  for (const int threads : {1, 4}) {
    try {
      (void)tokenize(text, fails, {.threads = threads, .piece = 100});
      FAIL();
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "at 500");
    }
  }
  EXPECT_THROW(tokenize(text, bytes_of, {.threads = 0}), UsageError);
  EXPECT_THROW(tokenize(text, bytes_of, {.piece = 0}), UsageError);
  EXPECT_THROW(tokenize(text, [](std::string_view) { return std::vector<TokenId>{1LL << 40U}; }), UsageError);
}

}  // namespace
}  // namespace snug::data
