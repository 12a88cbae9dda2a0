#include "snug/data/tokenizer_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "snug/base/errors.h"

namespace snug::data {

// A format is a file that defines <name>_format(), and a line here. A .model has a tokenizer.json beside it that only
// transformers reads.
// clang-format off
#define SNUG_TOKENIZER_FORMATS(format) \
  format(byte_tokenizer) \
  format(sentence_piece) \
  format(tokenizer_json) \
  format(gguf_vocabulary) \
  // the end
// clang-format on

#define SNUG_DECLARE(name) const TokenizerFormat& name##_format();
SNUG_TOKENIZER_FORMATS(SNUG_DECLARE)
#undef SNUG_DECLARE

const std::vector<const TokenizerFormat*>& tokenizer_formats() {
#define SNUG_ADDRESS(name) &name##_format(),
  static const std::vector<const TokenizerFormat*> formats{SNUG_TOKENIZER_FORMATS(SNUG_ADDRESS)};
#undef SNUG_ADDRESS
  return formats;
}
#undef SNUG_TOKENIZER_FORMATS

std::string tokenizer_format_names() {
  std::vector<std::string_view> names;
  for (const TokenizerFormat* format : tokenizer_formats()) names.push_back(format->name);
  return fmt::format("{}", fmt::join(names, ", "));
}

const TokenizerFormat& tokenizer_format(const std::filesystem::path& path) {
  for (const TokenizerFormat* format : tokenizer_formats()) {
    if (format->recognizes(path)) return *format;
  }
  throw UsageError(
      fmt::format("tokenizer: {} is of no known format; name one of {}", path.string(), tokenizer_format_names()));
}

std::unique_ptr<const Tokenizer> open_tokenizer(const std::filesystem::path& path, const TokenizerOptions& options) {
  return tokenizer_format(path).open(path, options);
}

}  // namespace snug::data
