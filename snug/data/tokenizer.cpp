#include "snug/data/tokenizer.h"

#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/data/tokenizer_json.h"

namespace snug::data {

std::vector<TokenId> ByteTokenizer::encode(std::string_view text) {
  std::vector<TokenId> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::decode(const std::vector<TokenId>& ids) {
  std::string text;
  text.reserve(ids.size());
  for (const TokenId id : ids) {
    if (id < 0 || id >= size()) throw UsageError(fmt::format("tokenizer: token {} is none of {}", id, size()));
    text.push_back(static_cast<char>(id));
  }
  return text;
}

Tokenizer open_tokenizer(const std::filesystem::path& path, const SentencePieceOptions& options) {
  if (path.extension() == ".json") return BytePairTokenizer(read_tokenizer_json(path));
  if (path.extension() == ".model") return SentencePieceTokenizer::open(path, options);
  throw UsageError(
      fmt::format("tokenizer: {} ends neither in .json nor in .model; name a tokenizer.json or a "
                  "SentencePiece model",
                  path.string()));
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text) {
  return std::visit([&](const auto& t) { return t.encode(text); }, tokenizer);
}

std::string decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  return std::visit([&](const auto& t) { return t.decode(ids); }, tokenizer);
}

std::string decode_after(const Tokenizer& tokenizer, const std::vector<TokenId>& before,
                         const std::vector<TokenId>& more) {
  std::vector<TokenId> all = before;
  all.insert(all.end(), more.begin(), more.end());
  const std::string first = decode(tokenizer, before);
  std::string text = decode(tokenizer, all);
  // Bytes that only `more` makes a character of change what stood for them.
  if (!text.starts_with(first)) return decode(tokenizer, more);
  return text.substr(first.size());
}

TokenId size(const Tokenizer& tokenizer) {
  return std::visit([](const auto& t) { return t.size(); }, tokenizer);
}

}  // namespace snug::data
