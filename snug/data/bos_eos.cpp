#include "snug/data/bos_eos.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

/// The tokens that encode() adds to every text; the first `prefix` of them stand in front.
struct Added {
  std::vector<TokenId> tokens;
  std::size_t prefix = 0;
};

/// nullopt if the encodings of "" and "a" do not show it.
std::optional<Added> added_tokens(const Tokenizer& tokenizer) {
  if (tokenizer.of_bytes()) return Added{};
  const std::vector<TokenId> empty = tokenizer.encode(""), letter = tokenizer.encode("a");
  if (letter.size() <= empty.size()) return std::nullopt;
  for (std::size_t prefix = empty.size() + 1; prefix-- > 0;) {
    const auto split = empty.begin() + static_cast<std::ptrdiff_t>(prefix);
    const bool is_prefix = std::equal(empty.begin(), split, letter.begin());
    if (is_prefix && std::equal(split, empty.end(), letter.end() - (empty.end() - split))) return Added{empty, prefix};
  }
  return std::nullopt;
}

}  // namespace

BosEos bos_eos_of(const Tokenizer& tokenizer) {
  const std::optional<Added> added = added_tokens(tokenizer);
  if (!added) {
    throw UsageError(
        "tokenizer: the special tokens that it adds to every text are not the same for \"\" and \"a\"; set "
        "data.tokenizer to another one");
  }
  const auto& [tokens, prefix] = *added;
  const std::size_t suffix = tokens.size() - prefix;
  if (prefix > 1 || suffix > 1) {
    throw UsageError(fmt::format(
        "tokenizer: it adds {} tokens in front of every text and {} after it; at most one each is supported", prefix,
        suffix));
  }
  return {.bos = prefix == 1 ? std::optional(tokens.front()) : std::nullopt,
          .eos = suffix == 1 ? std::optional(tokens.back()) : std::nullopt};
}

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids = tokenizer.encode(text);
  if (const std::optional<Added> added = added_tokens(tokenizer))
    ids.resize(ids.size() - (added->tokens.size() - added->prefix));
  return ids;
}

}  // namespace snug::data
