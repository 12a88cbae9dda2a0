#include "snug/data/tokenizer.h"

namespace snug::data {

std::string decode_after(const Tokenizer& tokenizer, const std::vector<TokenId>& before,
                         const std::vector<TokenId>& more) {
  std::vector<TokenId> all = before;
  all.insert(all.end(), more.begin(), more.end());
  const std::string first = tokenizer.decode(before);
  std::string text = tokenizer.decode(all);
  // Bytes that only `more` makes a character of change what stood for them.
  if (!text.starts_with(first)) return tokenizer.decode(more);
  return text.substr(first.size());
}

}  // namespace snug::data
