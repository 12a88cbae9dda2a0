#include "snug/data/end_token.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <system_error>

#include "snug/base/errors.h"
#include "snug/base/json_field.h"
#include "snug/base/text_file.h"

namespace snug::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_end_token(const fs::path& path, const std::string& what) {
  throw UsageError(fmt::format("tokenizer: {}: {}", path.string(), what));
}

/// eos_token as it is written; empty when the file does not say, or is not there.
std::string end_in(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  std::string text;
  try {
    text = read_text(path);
  } catch (const std::system_error& error) {
    refuse_end_token(path, fmt::format("it cannot be read: {}", error.code().message()));
  }
  const JsonFile file(text, {.name = fmt::format("tokenizer: {}", path.string()),
                             .cure = "put that of the tokenizer's own model there"});
  const auto token = file.root().find("eos_token");
  if (!token) return {};
  // A token, or what describes one.
  return token->is_object() ? token->optional<std::string>("content", "") : token->as<std::string>();
}

}  // namespace

std::optional<TokenId> end_token(const Tokenizer& tokenizer, const fs::path& folder) {
  if (tokenizer.of_bytes()) return std::nullopt;
  const fs::path path = folder / "tokenizer_config.json";
  if (const std::string written = end_in(path); !written.empty()) {
    const auto id = tokenizer.find(written);
    if (!id)
      refuse_end_token(path,
                       fmt::format("its eos_token \"{}\" is none of the tokenizer's; are they of one model?", written));
    return id;
  }
  return tokenizer.end_token();
}

}  // namespace snug::data
