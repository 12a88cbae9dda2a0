#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/data/byte_pair.h"

namespace snug::data {

/// What the metadata of a GGUF file says of its tokenizer, under tokenizer.ggml.
struct GgufVocabulary {
  std::string model;                ///< "gpt2": byte-level pairs
  std::string pre;                  ///< the pre-tokenizer, as PreTokenizer::named reads it
  std::vector<std::string> tokens;  ///< bytes as printable characters
  std::vector<std::int64_t> types;  ///< 1 normal, 2 unknown, 3 control, 4 added by a user, 5 unused, 6 byte
  std::vector<std::string> merges;  ///< "left right"
  std::optional<TokenId> begin;     ///< put before every text, when add_begin says so
  std::optional<bool> add_begin;    ///< not said: for "llama-bpe" alone, as llama.cpp has it
};

/// Its model. `name` is the file's for errors. Throws UsageError when it is not whole, and for tokenizers of other
/// kinds.
BytePairModel byte_pair_model(const GgufVocabulary& vocabulary, std::string_view name);

}  // namespace snug::data
