#pragma once

#include <cstddef>
#include <cstdint>

// Floating-point numbers taken to pieces, in vectors of SSE 4.1 where the processor has it: exponents above a base, a
// byte or half of one each, and the rest, which is the sign and the mantissa. One thread. Of fp32 (std::uint32_t) and
// bf16 (std::uint16_t), both of which have 8 bits of exponent behind the sign.
namespace snug::memory {

template <class Number>
struct FloatParts {
  static constexpr int kMantissa = static_cast<int>(8 * sizeof(Number)) - 9;  ///< bits
  static constexpr std::size_t kRest = sizeof(Number) - 1;                    ///< bytes

  static unsigned exponent(Number number) { return static_cast<unsigned>(number >> kMantissa) & 0xFFU; }
  /// Of all of them.
  static unsigned highest_exponent(const Number* numbers, std::int64_t count);
  /// A byte for each number: how far its exponent is above `base`, 0 where it is not.
  static void codes(const Number* numbers, std::int64_t count, std::int32_t base, std::uint8_t* to);
  static void put_rest(const Number* numbers, std::int64_t count, std::uint8_t* to);
  /// Of what put_rest() has written, with exponents so far above the base.
  static void join(const std::uint8_t* rest, const std::uint8_t* codes, std::uint32_t base, std::int64_t count,
                   Number* numbers);
};

[[nodiscard]] std::int64_t zeros_in(const std::uint8_t* codes, std::int64_t count);
/// Two codes of 4 bits to a byte, the first in the lower half, and back.
void pack_codes(const std::uint8_t* codes, std::int64_t pairs, std::uint8_t* to);
void unpack_codes(const std::uint8_t* from, std::int64_t pairs, std::uint8_t* codes);

}  // namespace snug::memory
