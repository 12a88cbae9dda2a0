#include "snug/data/tokenizer_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"
#include "snug/base/text_file.h"
#include "snug/data/named_tokens.h"

namespace snug::data {
namespace {

namespace fs = std::filesystem;

struct Beside {
  std::string_view file;
  std::vector<NamedToken> (*tokens)(std::string_view json, std::string_view name);
  bool all;  ///< and not only what was added
};

constexpr std::string_view kConfig = "tokenizer_config.json";
constexpr std::array kBeside{Beside{"tokenizer.json", tokens_of_tokenizer_json, true},
                             Beside{"added_tokens.json", tokens_of_added_tokens_json, false},
                             Beside{kConfig, tokens_of_tokenizer_config, false}};

std::string contents(const fs::path& path) {
  try {
    return read_text(path);
  } catch (const std::system_error& error) {
    throw UsageError(fmt::format("tokenizer: {} cannot be read: {}", path.string(), error.code().message()));
  }
}

/// What tokenizer_config.json says, if there is one; `otherwise` where it does not.
TokenizerOptions options_in(const fs::path& folder, const TokenizerOptions& otherwise) {
  const fs::path config = folder / kConfig;
  std::error_code ignored;
  if (!fs::exists(config, ignored)) return otherwise;
  const JsonFile file(contents(config), {.name = fmt::format("tokenizer: {}", config.string())});
  return {.begin = file.root().optional("add_bos_token", otherwise.begin),
          .end = file.root().optional("add_eos_token", otherwise.end)};
}

void compare(const Tokenizer& tokenizer, const fs::path& from, const Beside& beside, const fs::path& path) {
  const std::string cure =
      fmt::format("take away the one that is old, or set data.tokenizer = \"{}\" to go by {} alone", from.string(),
                  from.filename().string());
  std::vector<bool> known(static_cast<std::size_t>(tokenizer.size()));
  for (const NamedToken& token : beside.tokens(contents(path), path.string())) {
    if (tokenizer.find(token.text) == token.id) {
      known[static_cast<std::size_t>(token.id)] = true;
      continue;
    }
    throw UsageError(fmt::format("tokenizer: {} has {}, token {}, and {} has no such one; {}", path.string(),
                                 nlohmann::json(token.text).dump(), token.id, from.string(), cure));
  }
  if (!beside.all) return;
  for (std::size_t id = 0; id < known.size(); ++id) {
    if (known[id]) continue;
    throw UsageError(
        fmt::format("tokenizer: {} has no token {}, and {} has; {}", path.string(), id, from.string(), cure));
  }
}

}  // namespace

std::unique_ptr<const Tokenizer> open_tokenizer_of_folder(const fs::path& folder, const TokenizerOptions& options) {
  std::vector<std::string_view> files;
  std::error_code ignored;
  for (const TokenizerFormat* format : tokenizer_formats()) {
    if (format->file.empty()) continue;
    files.push_back(format->file);
    const fs::path path = folder / format->file;
    if (!fs::exists(path, ignored)) continue;
    auto tokenizer = tokenizer_format(path).open(path, options_in(folder, options));  // several may share a name
    // What transformers goes by needs no comparison.
    if (format->file == kBeside.front().file) return tokenizer;
    for (const Beside& beside : kBeside) {
      if (fs::exists(folder / beside.file, ignored)) compare(*tokenizer, path, beside, folder / beside.file);
    }
    return tokenizer;
  }
  throw UsageError(fmt::format("tokenizer: {} has none of {}; name another by data.tokenizer, or \"bytes\"",
                               folder.string(), fmt::join(files, ", ")));
}

}  // namespace snug::data
