#include "snug/data/streamed_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "snug/data/tokenizer_format.h"
#include "tests/data/token_files.h"

namespace snug::data {
namespace {

/// Counts the tokens that are decoded.
class CountingTokenizer final : public Tokenizer {
 public:
  explicit CountingTokenizer(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::vector<TokenId> encode(std::string_view text) const override { return tokenizer_->encode(text); }
  std::string decode(const std::vector<TokenId>& ids) const override {
    decoded += ids.size();
    return tokenizer_->decode(ids);
  }
  TokenId size() const override { return tokenizer_->size(); }
  std::optional<TokenId> find(std::string_view token) const override { return tokenizer_->find(token); }
  mutable std::size_t decoded = 0;

 private:
  const Tokenizer* tokenizer_;
};

const std::vector<std::string> kTokenizers{"bytes", "bpe.model", "unigram.model", "gpt2.json", "llama3.json"};

std::unique_ptr<const Tokenizer> opened(const std::string& name) {
  return open_tokenizer(name == "bytes" ? name : (std::filesystem::path(SNUG_TESTS) / "data" / name).string());
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& before, const std::vector<TokenId>& ids) {
  StreamedText text(tokenizer, before);
  std::string all;
  for (const TokenId id : ids) all += text.add(id);
  return all + text.rest();
}

TEST(StreamedText, IsTheTextOfAllTokens) {
  const std::string text = "The rain  in\n\n Spain: größer, 東京 🙂🙂 €5.\t\tand  so\r\n on";
  for (const std::string& name : kTokenizers) {
    const auto tokenizer = opened(name);
    const std::vector<TokenId> ids = tokenizer->encode(text);
    for (std::size_t given = 0; given <= ids.size(); ++given) {
      const auto middle = ids.begin() + static_cast<std::ptrdiff_t>(given);
      const std::vector<TokenId> before(ids.begin(), middle), more(middle, ids.end());
      // Where a character is divided the two halves are shown as they are.
      const std::string expected = decode_after(*tokenizer, before, more);
      EXPECT_EQ(streamed(*tokenizer, before, more), expected) << name << " " << given;
    }
  }
}

TEST(StreamedText, OfAnyTokensIsTheirText) {
  std::mt19937 random(7);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same in each run
  for (const std::string& name : kTokenizers) {
    const auto tokenizer = opened(name);
    for (int run = 0; run < 50; ++run) {
      std::vector<TokenId> ids;
      for (int i = 0; i < 40; ++i)
        ids.push_back(std::uniform_int_distribution<TokenId>(0, tokenizer->size() - 1)(random));
      EXPECT_EQ(streamed(*tokenizer, {}, ids), tokenizer->decode(ids)) << name << " " << run;
    }
  }
}

TEST(StreamedText, ShowsWholeCharacters) {
  const auto bytes = opened("bytes");
  StreamedText text(*bytes, {});
  EXPECT_EQ(text.add('a'), "a");
  EXPECT_EQ(text.add(0xE2), "");
  EXPECT_EQ(text.add(0x82), "");
  EXPECT_EQ(text.add(0xAC), "€");
  EXPECT_EQ(text.add(0xE2), "");
  EXPECT_EQ(text.rest(), "\xE2");
  EXPECT_EQ(text.rest(), "") << "it has been shown";
}

TEST(StreamedText, TakesTimeInProportionToTheTokens) {
  for (const std::string& name : kTokenizers) {
    const auto tokenizer = opened(name);
    const CountingTokenizer counting(*tokenizer);
    std::string words;
    for (int i = 0; i < 500; ++i) words += " rain and größer";
    const std::vector<TokenId> ids = tokenizer->encode(words);
    EXPECT_EQ(streamed(counting, {}, ids), tokenizer->decode(ids)) << name;
    EXPECT_LT(counting.decoded, 30 * ids.size()) << name;
  }
}

}  // namespace
}  // namespace snug::data
