#include "snug/data/byte_tokenizer.h"

#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/data/tokenizer_format.h"

namespace snug::data {

std::vector<TokenId> ByteTokenizer::encode(std::string_view text) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::decode(const std::vector<TokenId>& ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const TokenId id : ids) {
    if (id < 0 || id >= size()) throw UsageError(fmt::format("tokenizer: token {} is none of {}", id, size()));
    text.push_back(static_cast<char>(id));
  }
  return text;
}

const TokenizerFormat& byte_tokenizer_format() {
  static const TokenizerFormat format{
      .name = "bytes",
      .recognizes = [](const std::filesystem::path& path) { return path == "bytes"; },
      .open = [](const std::filesystem::path&, const TokenizerOptions&) -> std::unique_ptr<const Tokenizer> {
        return std::make_unique<ByteTokenizer>();
      }};
  return format;
}

}  // namespace snug::data
