#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "snug/data/byte_pair.h"
#include "snug/data/sentence_piece.h"

namespace snug::data {

/// Every byte is a token: ids 0 to 255.
struct ByteTokenizer {
  [[nodiscard]] static std::vector<TokenId> encode(std::string_view text);
  /// Throws UsageError for an id that is none.
  [[nodiscard]] static std::string decode(const std::vector<TokenId>& ids);
  [[nodiscard]] static TokenId size() { return 256; }
};

/// Cuts text into tokens and joins them again. Safe from any number of threads.
using Tokenizer = std::variant<ByteTokenizer, BytePairTokenizer, SentencePieceTokenizer>;

/// A tokenizer.json of byte-pair tokens, or a SentencePiece .model file, by the name's ending. Throws UsageError for
/// others, and when the file is damaged. `options` are for the latter kind; the former has its own.
Tokenizer open_tokenizer(const std::filesystem::path& path, const SentencePieceOptions& options = {});

/// Special tokens that are written out count as such in byte-pair tokenizers; see each tokenizer's own function.
std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text);
/// Throws UsageError for an id that is none.
std::string decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids);
/// What `more` adds to the text of the tokens `before`, which is not always its own text: SentencePiece takes the blank
/// off the first word. Throws UsageError for an id that is none.
std::string decode_after(const Tokenizer& tokenizer, const std::vector<TokenId>& before,
                         const std::vector<TokenId>& more);
/// How many ids there are, from 0 on.
TokenId size(const Tokenizer& tokenizer);

}  // namespace snug::data
