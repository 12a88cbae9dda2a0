#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/data/byte_pair.h"
#include "snug/data/text_corpus.h"
#include "snug/data/token_corpus.h"

namespace snug::data {

/// Encodes one piece of a document. It is called from several threads at once. What it puts around a text, it puts
/// around every piece: leave tokens around a document to TokenizeOptions. The blank that a SentencePiece model may put
/// in front of a text comes in front of every piece, too.
using EncodePiece = std::function<std::vector<TokenId>(std::string_view)>;

struct TokenizeOptions {
  int threads = 1;
  /// A longer document is encoded in pieces of at most this size. They end where a line does that ends in a single
  /// newline, and text without leading blanks follows, where tokens of most vocabularies end too; a piece without such
  /// a place ("\r\n", paragraphs) ends between two words, behind a newline, or at a character's end.
  Bytes piece = 1 << 20;
  std::optional<TokenId> before = {};  ///< token in front of every document
  std::optional<TokenId> after = {};   ///< token behind every document that does not end in it already
};

/// The tokens of a text, file by file, each a document, in memory: 4 bytes for each token, and as much again while it
/// works, both tagged as staging. The result depends on `piece` and not on `threads`. Throws UsageError when an option
/// is out of range or an id does not fit into 32 bits, and what `encode` throws; of several such, the first in the
/// text's order.
TokenCorpus tokenize(const TextCorpus& text, const EncodePiece& encode, const TokenizeOptions& options = {});

}  // namespace snug::data
