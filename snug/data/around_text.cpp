#include "snug/data/around_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "snug/base/errors.h"

namespace snug::data {

namespace {

/// What encode() puts around every text, in order, and how many of it come in front.
struct Around {
  std::vector<TokenId> tokens;
  std::size_t front = 0;
};

/// nullopt where two texts do not tell.
std::optional<Around> around(const Tokenizer& tokenizer) {
  if (tokenizer.of_bytes()) return Around{};
  const std::vector<TokenId> bare = tokenizer.encode(""), letter = tokenizer.encode("a");
  for (std::size_t front = bare.size() + 1; front-- > 0;) {
    if (letter.size() <= bare.size()) break;
    const auto split = bare.begin() + static_cast<std::ptrdiff_t>(front);
    const bool begins = std::equal(bare.begin(), split, letter.begin());
    if (begins && std::equal(split, bare.end(), letter.end() - (bare.end() - split))) return Around{bare, front};
  }
  return std::nullopt;
}

}  // namespace

AroundText tokens_around(const Tokenizer& tokenizer) {
  const std::optional<Around> found = around(tokenizer);
  if (!found) throw UsageError("tokenizer: two texts do not tell what it puts around every text; use another one");
  const auto& [tokens, front] = *found;
  const std::size_t behind = tokens.size() - front;
  if (front > 1 || behind > 1) {
    throw UsageError(fmt::format(
        "tokenizer: it puts {} tokens in front of every text and {} behind it; one each is known", front, behind));
  }
  return {.before = front == 1 ? std::optional(tokens.front()) : std::nullopt,
          .after = behind == 1 ? std::optional(tokens.back()) : std::nullopt};
}

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<TokenId> ids = tokenizer.encode(text);
  if (const std::optional<Around> found = around(tokenizer))
    ids.resize(ids.size() - found->tokens.size() + found->front);
  return ids;
}

}  // namespace snug::data
