#pragma once

#include <cstdint>

// What one thread does of memory::Codec::Exponents, of a block of fp32 (std::uint32_t) or bf16 numbers (std::uint16_t).
namespace snug::memory {

/// Where a block's parts stand.
struct ExponentBlock {
  std::uint8_t* codes;      ///< half a byte for each number: its exponent above `base`, or 0 where it is not one of 15
  std::uint8_t* rest;       ///< sign and mantissa, in 3 bytes (fp32) or 1
  std::uint8_t* exponents;  ///< of those without a code, in their order
};

/// The exponent below the 15 that a block has codes for: those up to its highest.
[[nodiscard]] int exponent_base(const std::uint32_t* numbers, std::int64_t count);
[[nodiscard]] int exponent_base(const std::uint16_t* numbers, std::int64_t count);

/// How many have no code.
[[nodiscard]] std::int64_t without_code(const std::uint32_t* numbers, std::int64_t count, int base);
[[nodiscard]] std::int64_t without_code(const std::uint16_t* numbers, std::int64_t count, int base);

/// Returns how many have none.
std::int64_t encode_block(const std::uint32_t* numbers, std::int64_t count, int base, const ExponentBlock& to);
std::int64_t encode_block(const std::uint16_t* numbers, std::int64_t count, int base, const ExponentBlock& to);
void decode_block(const ExponentBlock& from, int base, std::uint32_t* numbers, std::int64_t count);
void decode_block(const ExponentBlock& from, int base, std::uint16_t* numbers, std::int64_t count);

}  // namespace snug::memory
