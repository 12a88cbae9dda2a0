#pragma once

#include <filesystem>
#include <vector>

#include "snug/data/byte_pair.h"
#include "snug/data/gguf_vocabulary.h"
#include "snug/state/gguf.h"

namespace snug::train {

// What the metadata of a GGUF file says of its model's tokens. `path` is the file's, for errors. All throw UsageError
// for a key whose value is of another type or out of range.

data::GgufVocabulary vocabulary_of_gguf(const state::GgufHeader& header, const std::filesystem::path& path);
data::BytePairTokenizer tokenizer_of_gguf(const state::GgufHeader& header, const std::filesystem::path& path);

/// Tokens that end a text.
std::vector<data::TokenId> ends_of_gguf(const state::GgufHeader& header, const std::filesystem::path& path);

}  // namespace snug::train
