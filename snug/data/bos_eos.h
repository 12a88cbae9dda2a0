#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "snug/data/tokenizer.h"

namespace snug::data {

/// The special tokens with which a tokenizer begins and ends every text that it encodes.
struct BosEos {
  std::optional<TokenId> bos, eos;
};

/// Compares the encodings of two short texts. Throws UsageError if the tokenizer adds more than one token in front of
/// or after a text, or if the two encodings do not show what it adds.
BosEos bos_eos_of(const Tokenizer& tokenizer);

/// Encodes a text that a model is to continue: without the EOS token, after which it would begin another text.
std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view text);

}  // namespace snug::data
