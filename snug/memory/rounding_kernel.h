#pragma once

#include <cstdint>

// What one thread does of the lossy codecs, of a group of numbers. The same bits on every processor.
namespace snug::memory {

/// A group's smallest number, and how far its levels are apart.
struct Levels {
  float lowest = 0, step = 0;
};

/// Each of `count` numbers as one of `last` + 1 levels (15 or 255) from the smallest number to the largest, a byte
/// each: the one below it or the one above it, at random, so that the expectation is the number (stochastic rounding).
/// What is random follows from the numbers and where they stand, `first` on. False where one of them is no finite
/// number, or its amount is 2^127 or more.
bool to_levels(const float* numbers, std::int64_t count, std::uint32_t first, std::int32_t last, Levels& levels,
               std::uint8_t* codes);
void from_levels(const std::uint8_t* codes, std::int64_t count, const Levels& levels, float* numbers);

/// Each as the nearest number of 8 bits, 4 of them an exponent (E4M3), times `scale`, by which the largest is the
/// largest of those. Ties go to even. False where one of them is no finite number.
bool to_float8(const float* numbers, std::int64_t count, float& scale, std::uint8_t* codes);
void from_float8(const std::uint8_t* codes, std::int64_t count, float scale, float* numbers);

/// The upper halves of the nearest numbers of bf16; ties go to even. False where one of them is none, or has none.
bool to_bfloat16(const float* numbers, std::int64_t count, std::uint16_t* to);
void from_bfloat16(const std::uint16_t* numbers, std::int64_t count, float* to);

}  // namespace snug::memory
