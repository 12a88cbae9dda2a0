#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/gguf_metadata.h"
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
  std::vector<TokenId> ends;        ///< see ends_of_gguf
};

/// That of a file's metadata. Refuses, as the source of the fields says, a key whose value is of another type or out of
/// range.
GgufVocabulary vocabulary_of_gguf(const GgufFields& metadata);

/// Tokens that end a text, that of a document first. Refuses as above.
std::vector<TokenId> ends_of_gguf(const GgufFields& metadata);

/// Its model. `name` is the file's for errors. Throws UsageError when it is not whole, and for tokenizers of other
/// kinds.
BytePairModel byte_pair_model(const GgufVocabulary& vocabulary, std::string_view name);

/// The tokenizer in the metadata of a GGUF file. Throws UsageError as the functions above do. `name` is the file's for
/// errors.
BytePairTokenizer tokenizer_of_gguf(const GgufMetadata& metadata, std::string_view name);

}  // namespace snug::data
