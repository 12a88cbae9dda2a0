#pragma once

#include <filesystem>
#include <memory>

#include "snug/data/tokenizer_format.h"

namespace snug::data {

/// The tokenizer in a folder as transformers saves it: of the formats that have a name there (TokenizerFormat::file),
/// the first whose file is there. Throws UsageError when none is, when it cannot be read or is damaged, and when
/// another file of the folder (tokenizer.json, added_tokens.json, tokenizer_config.json) has a token that it has not,
/// or under another id: transformers goes by those. `options` hold for what tokenizer_config.json does not say
/// (add_bos_token, add_eos_token).
std::unique_ptr<const Tokenizer> open_tokenizer_of_folder(const std::filesystem::path& folder,
                                                          const TokenizerOptions& options = {});

}  // namespace snug::data
