#pragma once

#include <filesystem>
#include <string_view>

#include "snug/models/llama.h"
#include "snug/state/gguf.h"

namespace snug::train {

/// A tensor of Llama 3's files that is no weight: what frequencies of the rotary embedding are divided by.
inline constexpr std::string_view kGgufRotaryFactors = "rope_freqs.weight";

/// The shape of the model in a GGUF file. `path` is the file's, for errors. Throws UsageError for another architecture,
/// for a key or tensor that has to be there, and for a key whose value is of another type or out of range.
models::LlamaOptions llama_options_of_gguf(const state::Gguf& gguf, const std::filesystem::path& path);

}  // namespace snug::train
