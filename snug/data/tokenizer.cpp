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

Tokenizer open_tokenizer(const std::filesystem::path& path) {
  if (path.extension() == ".json") return BytePairTokenizer(read_tokenizer_json(path));
  if (path.extension() == ".model") return SentencePieceTokenizer::open(path);
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

TokenId size(const Tokenizer& tokenizer) {
  return std::visit([](const auto& t) { return t.size(); }, tokenizer);
}

}  // namespace snug::data
