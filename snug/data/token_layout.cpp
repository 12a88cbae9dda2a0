#include "snug/data/token_layout.h"

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

namespace snug::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie in memory");

/// Calls with a value of the C++ type.
template <class Call>
auto with(TokenType type, const Call& call) {
  switch (type) {
    case TokenType::U8:
      return call(std::uint8_t{});
    case TokenType::I8:
      return call(std::int8_t{});
    case TokenType::U16:
      return call(std::uint16_t{});
    case TokenType::I16:
      return call(std::int16_t{});
    case TokenType::U32:
      return call(std::uint32_t{});
    case TokenType::I32:
      return call(std::int32_t{});
    case TokenType::I64:
      break;
  }
  return call(std::int64_t{});
}

}  // namespace

std::size_t width_of(TokenType type) {
  return with(type, [](auto zero) { return sizeof(zero); });
}

bool can_leave(TokenType type, std::int64_t vocabulary) {
  return with(type, [&](auto zero) {
    using Stored = decltype(zero);
    return std::is_signed_v<Stored> || static_cast<std::int64_t>(std::numeric_limits<Stored>::max()) >= vocabulary;
  });
}

void read_tokens(TokenType type, const std::uint8_t* bytes, std::span<std::int64_t> out) {
  with(type, [&](auto zero) {
    for (std::int64_t& id : out) {
      std::memcpy(&zero, bytes, sizeof(zero));
      bytes += sizeof(zero);
      id = static_cast<std::int64_t>(zero);
    }
  });
}

}  // namespace snug::data
