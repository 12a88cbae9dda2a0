#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace snug::data {

using TokenId = std::int64_t;

/// Cuts text into tokens and joins them again. Safe from any number of threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Special tokens that are written out may count as such: see each kind.
  [[nodiscard]] virtual std::vector<TokenId> encode(std::string_view text) const = 0;
  /// Throws UsageError for an id that is none.
  [[nodiscard]] virtual std::string decode(const std::vector<TokenId>& ids) const = 0;
  /// How many ids there are, from 0 on.
  [[nodiscard]] virtual TokenId size() const = 0;

  /// The token that is written so; nullopt when there is none.
  [[nodiscard]] virtual std::optional<TokenId> find(std::string_view token) const = 0;
  /// The token for the end of a text, where its own file names one.
  [[nodiscard]] virtual std::optional<TokenId> end_token() const { return std::nullopt; }
  /// Whether every byte is the token of its number, so that a text need not be cut.
  [[nodiscard]] virtual bool of_bytes() const { return false; }

 protected:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = default;
  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(const Tokenizer&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;
};

/// What `more` adds to the text of the tokens `before`, which is not always its own text: SentencePiece takes the blank
/// off the first word. Throws UsageError for an id that is none.
std::string decode_after(const Tokenizer& tokenizer, const std::vector<TokenId>& before,
                         const std::vector<TokenId>& more);

}  // namespace snug::data
