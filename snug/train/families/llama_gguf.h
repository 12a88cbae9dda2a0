#pragma once

#include <string_view>

#include "snug/base/gguf_metadata.h"
#include "snug/models/llama.h"
#include "snug/state/gguf.h"

namespace snug::train {

/// A tensor of Llama 3's files that is no weight: what frequencies of the rotary embedding are divided by.
inline constexpr std::string_view kGgufRotaryFactors = "rope_freqs.weight";

/// The shape of the model in a GGUF file. `metadata` is the file's, and refuses as its source says: another
/// architecture, a key or tensor that is missing, and a key whose value is of another type or out of range.
models::LlamaOptions llama_options_of_gguf(const state::Gguf& gguf, const GgufFields& metadata);

}  // namespace snug::train
