#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace snug::data {

/// How a token id is stored, little-endian.
enum class TokenType : std::uint8_t { U8, I8, U16, I16, U32, I32, I64 };

/// Bytes of one token.
std::size_t width_of(TokenType type);

/// Whether some value of the type is no id of a vocabulary of that size.
bool can_leave(TokenType type, std::int64_t vocabulary);

/// Widens out.size() tokens that begin at `bytes`, which may lie at any address.
void read_tokens(TokenType type, const std::uint8_t* bytes, std::span<std::int64_t> out);

/// Tokens that lie one after the other in a file.
struct TokenRun {
  std::int64_t first;  ///< number of its first token; it goes on up to the next run's
  std::size_t begin;   ///< where that token is, in bytes from the start of the file
};

/// Where the tokens of a file are. Whoever makes one has checked all of it against the file.
struct TokenLayout {
  TokenType type = TokenType::U16;
  std::int64_t size = 0;                ///< tokens
  std::vector<TokenRun> runs;           ///< by first; none is empty
  std::vector<std::int64_t> documents;  ///< the first token of each; documents may be empty
};

}  // namespace snug::data
