#pragma once

#include <string>
#include <vector>

#include "snug/base/json_field.h"
#include "snug/models/llama.h"

namespace snug::models {

/// The options in a config.json of Hugging Face's transformers. Refuses, as its source says, another architecture, what
/// is missing or of the wrong type, and settings that change results and are not known here (biases, other
/// activations).
LlamaOptions llama_options_of_json(const JsonField& json);

/// A config.json for those options, of a model in that type whose texts end with those tokens, that transformers and
/// the function above read. Throws
/// UsageError for rotary embeddings that have no name there.
std::string llama_json(const LlamaOptions& options, at::ScalarType dtype, const std::vector<std::int64_t>& ends);

}  // namespace snug::models
