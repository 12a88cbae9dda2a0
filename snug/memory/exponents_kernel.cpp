#include "snug/memory/exponents_kernel.h"

#include <algorithm>

#include "snug/memory/float_parts.h"

namespace snug::memory {
namespace {

constexpr int kCodes = 15;
constexpr std::int64_t kAtOnce = 512;  // numbers whose codes are bytes for a while

template <class Number>
int base_of(const Number* numbers, std::int64_t count) {
  return std::max(static_cast<int>(FloatParts<Number>::highest_exponent(numbers, count)) - kCodes, 0);
}

template <class Number>
std::int64_t without_code_of(const Number* numbers, std::int64_t count, int base) {
  std::uint8_t codes[kAtOnce];
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; i += kAtOnce) {
    const std::int64_t here = std::min(kAtOnce, count - i);
    FloatParts<Number>::codes(numbers + i, here, base, codes);
    found += zeros_in(codes, here);
  }
  return found;
}

template <class Number>
std::int64_t encode_of(const Number* numbers, std::int64_t count, int base, ExponentBlock to) {
  const std::uint8_t* const listed = to.exponents;
  std::uint8_t codes[kAtOnce + 1];
  for (std::int64_t i = 0; i < count; i += kAtOnce) {
    const std::int64_t here = std::min(kAtOnce, count - i);
    FloatParts<Number>::codes(numbers + i, here, base, codes);
    codes[here] = 1;  // for the half of a last byte
    pack_codes(codes, (here + 1) / 2, to.codes + i / 2);
    FloatParts<Number>::put_rest(numbers + i, here, to.rest + static_cast<std::size_t>(i) * FloatParts<Number>::kRest);
    if (zeros_in(codes, here) == 0) continue;
    for (std::int64_t k = 0; k < here; ++k) {
      if (codes[k] == 0) *to.exponents++ = static_cast<std::uint8_t>(FloatParts<Number>::exponent(numbers[i + k]));
    }
  }
  return to.exponents - listed;
}

template <class Number>
void decode_of(ExponentBlock from, int base, Number* numbers, std::int64_t count) {
  std::uint8_t codes[kAtOnce + 1];
  for (std::int64_t i = 0; i < count; i += kAtOnce) {
    const std::int64_t here = std::min(kAtOnce, count - i);
    unpack_codes(from.codes + i / 2, (here + 1) / 2, codes);
    FloatParts<Number>::join(from.rest + static_cast<std::size_t>(i) * FloatParts<Number>::kRest, codes,
                             static_cast<std::uint32_t>(base), here, numbers + i);
    if (zeros_in(codes, here) == 0) continue;
    for (std::int64_t k = 0; k < here; ++k) {
      if (codes[k] != 0) continue;
      const auto bits = static_cast<Number>(Number{0xFF} << FloatParts<Number>::kMantissa);
      numbers[i + k] = static_cast<Number>((numbers[i + k] & static_cast<Number>(~bits)) |
                                           static_cast<Number>(*from.exponents++) << FloatParts<Number>::kMantissa);
    }
  }
}

}  // namespace

int exponent_base(const std::uint32_t* numbers, std::int64_t count) { return base_of(numbers, count); }
int exponent_base(const std::uint16_t* numbers, std::int64_t count) { return base_of(numbers, count); }

std::int64_t without_code(const std::uint32_t* numbers, std::int64_t count, int base) {
  return without_code_of(numbers, count, base);
}
std::int64_t without_code(const std::uint16_t* numbers, std::int64_t count, int base) {
  return without_code_of(numbers, count, base);
}

std::int64_t encode_block(const std::uint32_t* numbers, std::int64_t count, int base, const ExponentBlock& to) {
  return encode_of(numbers, count, base, to);
}
std::int64_t encode_block(const std::uint16_t* numbers, std::int64_t count, int base, const ExponentBlock& to) {
  return encode_of(numbers, count, base, to);
}
void decode_block(const ExponentBlock& from, int base, std::uint32_t* numbers, std::int64_t count) {
  decode_of(from, base, numbers, count);
}
void decode_block(const ExponentBlock& from, int base, std::uint16_t* numbers, std::int64_t count) {
  decode_of(from, base, numbers, count);
}

}  // namespace snug::memory
