#pragma once

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "snug/data/tokenizer.h"

namespace snug::data {

/// For formats whose files do not say what belongs around a text.
struct TokenizerOptions {
  bool begin = false;  ///< put the token for the beginning of a text in front of every text, as Llama 2 is used
  bool end = false;    ///< put the token for its end behind it
};

/// A format of tokenizers.
struct TokenizerFormat {
  /// Whether what transformers keeps in the folder of such a file is about it.
  enum class Beside : unsigned char { Settings, Nothing };

  std::string_view name;    ///< as help and errors have it: "a tokenizer.json"
  std::string_view file{};  ///< its name in a folder as transformers saves it; empty: it is in none
  /// By the path, and where formats share an extension by what the file says.
  bool (*recognizes)(const std::filesystem::path& path);
  std::unique_ptr<const Tokenizer> (*open)(const std::filesystem::path& path, const TokenizerOptions& options);
  Beside beside = Beside::Settings;
};

/// All there are. The first that recognizes a path opens it; of a folder's files it is the first that is there.
const std::vector<const TokenizerFormat*>& tokenizer_formats();

/// Their names, with commas between.
std::string tokenizer_format_names();

/// The one that recognizes a path. Throws UsageError when none does.
const TokenizerFormat& tokenizer_format(const std::filesystem::path& path);

/// The tokenizer in a file. Throws UsageError for a path of no known format, and when the file cannot be read or is
/// damaged; DamagedFile for a GGUF file that is not what its format says.
std::unique_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path,
                                                const TokenizerOptions& options = {});

}  // namespace snug::data
