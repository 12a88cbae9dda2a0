#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "snug/data/tokenizer.h"

namespace snug::data {

/// A token as it is written, and its id.
struct NamedToken {
  std::string text;
  TokenId id = 0;
};

// The tokens that files of transformers name, whatever the tokenizer does with them. `json` is a file's text and `name`
// its name for errors. All throw UsageError for what is no JSON object, and for a token without a text or an id.

/// Of a tokenizer.json: its vocabulary, and what was added to it.
std::vector<NamedToken> tokens_of_tokenizer_json(std::string_view json, std::string_view name);
/// Of an added_tokens.json, as tokenizers without a tokenizer.json have it: all.
std::vector<NamedToken> tokens_of_added_tokens_json(std::string_view json, std::string_view name);
/// Of a tokenizer_config.json: added_tokens_decoder; none where that is not there.
std::vector<NamedToken> tokens_of_tokenizer_config(std::string_view json, std::string_view name);

}  // namespace snug::data
