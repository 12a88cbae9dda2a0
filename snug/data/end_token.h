#pragma once

#include <filesystem>
#include <optional>

#include "snug/data/tokenizer.h"

namespace snug::data {

/// The token that ends a text: the eos_token of the tokenizer_config.json in `folder`, which transformers keeps beside
/// a tokenizer, or else what the tokenizer's own model calls so (that alone where `folder` is none). nullopt when
/// neither has one, and for bytes. Throws UsageError when that file is there and is no JSON object, or names a token
/// that the tokenizer does not have.
std::optional<TokenId> end_token(const Tokenizer& tokenizer, const std::filesystem::path& folder);

}  // namespace snug::data
