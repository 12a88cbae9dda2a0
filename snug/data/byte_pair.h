#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "snug/data/pre_tokenizer.h"
#include "snug/data/tokenizer.h"

namespace snug::data {

/// What a byte-level byte-pair tokenizer (Sennrich et al. 2016; Radford et al. 2019) is made of.
struct BytePairModel {
  std::vector<std::string> tokens;  ///< bytes of each id; special ones as they are written
  /// Pairs of tokens that become one, the most important first.
  std::vector<std::pair<std::string, std::string>> merges;
  /// Found in text before anything else, and merged with nothing.
  struct Added {
    TokenId id = 0;
    bool special = true;  ///< no text: the end of one, a mask, ...
  };
  std::vector<Added> added;
  std::vector<PreTokenizerStep> pre_tokenizer;
  bool whole_words_first = false;      ///< a piece that is a token is not taken apart (Llama 3's ignore_merges)
  std::vector<TokenId> before, after;  ///< put around every text
  std::optional<TokenId> end{};        ///< ends a text, where the file says so itself
};

/// The token's bytes, of a name in which each byte stands as a printable character, as vocabularies of GPT-2's kind
/// have them ("Ġthe" is " the"); nullopt when one of its characters stands for none.
std::optional<std::string> bytes_of_printable(std::string_view name);

/// What special tokens are to a tokenizer.
enum class Specials : unsigned char {
  Meant,   ///< tokens of their own, and shown as they are written
  Ignored  ///< text as any other, and left out
};

/// A byte-level byte-pair tokenizer: encodes any bytes, UTF-8 or not, and decodes them to what they were. Movable; safe
/// from any number of threads.
class BytePairTokenizer final : public Tokenizer {
 public:
  /// Throws UsageError when a byte has no token or a merge makes none.
  explicit BytePairTokenizer(BytePairModel model);
  BytePairTokenizer(BytePairTokenizer&&) = default;
  BytePairTokenizer& operator=(BytePairTokenizer&&) = default;

  /// Special tokens that are written out in the text count as such.
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text) const override {
    return encode(text, Specials::Meant);
  }
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text, Specials specials) const;

  /// The bytes of the tokens, special ones as they are written.
  [[nodiscard]] std::string decode(const std::vector<TokenId>& ids) const override {
    return decode(ids, Specials::Meant);
  }
  [[nodiscard]] std::string decode(const std::vector<TokenId>& ids, Specials specials) const;

  [[nodiscard]] TokenId size() const override { return static_cast<TokenId>(tokens_.size()); }
  [[nodiscard]] std::optional<TokenId> find(std::string_view token) const override;
  [[nodiscard]] std::optional<TokenId> end_token() const override { return end_; }

 private:
  struct Merge {
    std::uint32_t rank;
    TokenId result;
  };
  using Pair = std::pair<TokenId, TokenId>;
  struct PairHash {
    std::size_t operator()(const Pair& p) const noexcept {
      return std::hash<std::uint64_t>{}(static_cast<std::uint64_t>(p.first) << 32U ^
                                        static_cast<std::uint64_t>(p.second));
    }
  };
  void encode_words(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_word(std::string_view word, std::vector<TokenId>& ids) const;

  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, TokenId> ids_;  // views into tokens_
  std::unordered_map<Pair, Merge, PairHash> merges_;
  std::vector<TokenId> byte_tokens_;  // 256
  std::vector<bool> is_special_;
  std::map<std::string_view, TokenId, std::greater<>> added_;  // longer ones before their own beginnings
  std::array<bool, 256> begins_added_{};                       // by their first byte
  PreTokenizer pre_tokenizer_;
  bool whole_words_first_;
  std::vector<TokenId> before_, after_;
  std::optional<TokenId> end_;
};

}  // namespace snug::data
