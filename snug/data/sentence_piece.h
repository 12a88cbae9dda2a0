#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/data/tokenizer.h"
#include "snug/data/tokenizer_format.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace snug::data {

/// A SentencePiece tokenizer (Kudo and Richardson 2018), through its library: byte-pair, unigram, words or characters,
/// as the model says. Movable; safe from any number of threads.
class SentencePieceTokenizer final : public Tokenizer {
 public:
  /// Reads a .model file. Throws UsageError when it cannot be read or is damaged, or when an option asks for a token
  /// that it does not have.
  static SentencePieceTokenizer open(const std::filesystem::path& path, const TokenizerOptions& options = {});
  /// The same of the file's bytes; `name` is its name for errors.
  SentencePieceTokenizer(std::string_view model, std::string_view name, const TokenizerOptions& options = {});
  SentencePieceTokenizer(SentencePieceTokenizer&&) noexcept;
  SentencePieceTokenizer& operator=(SentencePieceTokenizer&&) noexcept;
  ~SentencePieceTokenizer() override;

  /// The text is normalized as the model says, and control tokens written out in it are text. A byte that is no UTF-8
  /// is read as U+FFFD. Throws UsageError for a text of more than 1 GiB: encode it in pieces (see tokenize).
  [[nodiscard]] std::vector<TokenId> encode(std::string_view text) const override;

  /// The text as it was normalized, without control tokens. Bytes that make no UTF-8 together come out as U+FFFD, and
  /// the unknown token as the model says. Throws UsageError for an id that is none.
  [[nodiscard]] std::string decode(const std::vector<TokenId>& ids) const override;

  [[nodiscard]] TokenId size() const override;
  /// The token that is written so, U+2581 standing for a blank; nullopt when there is none.
  [[nodiscard]] std::optional<TokenId> find(std::string_view token) const override;

  /// The tokens for the beginning and the end of a text and for what has no token; nullopt when there is none.
  [[nodiscard]] std::optional<TokenId> begin_token() const;
  [[nodiscard]] std::optional<TokenId> end_token() const override;
  [[nodiscard]] std::optional<TokenId> unknown_token() const;

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  TokenizerOptions options_;
};

}  // namespace snug::data
