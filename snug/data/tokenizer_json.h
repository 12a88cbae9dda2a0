#pragma once

#include <filesystem>
#include <string_view>

#include "snug/data/byte_pair.h"

namespace snug::data {

/// The byte-level byte-pair model in a tokenizer.json of Hugging Face's library: vocabulary, merges, added tokens, the
/// steps of its pre-tokenizer, and the tokens that its post-processor puts around a text. Its truncation and padding
/// are left out, as transformers leaves them. `name` is the file's for errors. Throws UsageError when it is not whole,
/// or asks for something that changes tokens and is not known here (other models, normalizers, added tokens that take
/// blanks along).
BytePairModel parse_tokenizer_json(std::string_view json, std::string_view name);

/// The same of a file.
BytePairModel read_tokenizer_json(const std::filesystem::path& path);

}  // namespace snug::data
