#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "snug/data/tokenizer.h"

namespace snug::data {

/// The text of tokens that come one by one, as far as its characters are whole. Each token is decoded with a few before
/// it, as its text may depend on those, so that a text takes time in proportion to its length. For one thread.
class StreamedText {
 public:
  /// `before`: tokens in front of the text. The tokenizer must outlive it.
  StreamedText(const Tokenizer& tokenizer, std::vector<TokenId> before);

  /// What there is to show with one more token; empty while its last character is not whole. Throws UsageError for an
  /// id that is none.
  std::string add(TokenId token);
  /// What is left behind the last token: bytes that are no whole character.
  std::string rest();

 private:
  void forget();

  const Tokenizer* tokenizer_;
  std::vector<TokenId> before_;   // shown, or in front of the text
  std::vector<TokenId> pending_;  // of which only `shown_` bytes have been shown
  std::size_t shown_ = 0;
};

}  // namespace snug::data
