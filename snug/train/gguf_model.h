#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "snug/data/gguf_vocabulary.h"
#include "snug/data/tokenizer.h"
#include "snug/models/llama.h"
#include "snug/state/gguf.h"

namespace snug::train {

/// A tensor of Llama 3's files that is no weight: what frequencies of the rotary embedding are divided by.
inline constexpr std::string_view kGgufRotaryFactors = "rope_freqs.weight";

// What the metadata of a GGUF file says of its model, by the keys that llama.cpp writes. `path` is the file's, for
// errors. All throw UsageError for a key whose value is of another type or out of range.

/// Its shape. Throws UsageError also for another architecture, and for a key or tensor that has to be there.
models::LlamaOptions llama_options_of_gguf(const state::Gguf& gguf, const std::filesystem::path& path);

/// Its tokenizer.
data::GgufVocabulary vocabulary_of_gguf(const state::GgufHeader& header, const std::filesystem::path& path);

/// Tokens that end a text.
data::Tokenizer tokenizer_of_gguf(const state::GgufHeader& header, const std::filesystem::path& path);

std::vector<data::TokenId> ends_of_gguf(const state::GgufHeader& header, const std::filesystem::path& path);

}  // namespace snug::train
