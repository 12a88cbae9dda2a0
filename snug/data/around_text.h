#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "snug/data/tokenizer.h"

namespace snug::data {

/// What a tokenizer puts around every text, which belongs around documents, and not around the pieces of long ones.
struct AroundText {
  std::optional<TokenId> before, after;
};

/// Finds out by encoding two texts. Throws UsageError for more than one token in front or behind.
AroundText tokens_around(const Tokenizer& tokenizer);

/// A text that is to be continued: without the token that the tokenizer puts behind every text, after which a model has
/// learned to begin another one.
std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view text);

}  // namespace snug::data
