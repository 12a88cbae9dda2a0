#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "snug/base/bytes.h"

namespace snug::memory {

/// Ways to write numbers in fewer bytes.
enum class Codec : std::uint8_t {
  // Each of these gives back the same bits.
  Zeros,      ///< a bit for each number that says whether it is 0, and those that are not: what a ReLU makes
  Bits,       ///< a bit for each byte that is 0 or 1: masks
  Narrow,     ///< signed integers in as many bytes as the largest of them needs: indices
  Exponents,  ///< fp32 or bf16 numbers with half a byte for the exponent, as most lie close to the highest around them;
              ///< the others' come after them
  // These give back numbers nearby, all finite: see error_bound. What is infinite or none cannot be written so.
  BFloat16,  ///< the nearest of bf16
  Float8,    ///< the nearest of 8 bits (E4M3), with a scale for each 128
  Int8,      ///< one of 256 levels from the smallest to the largest of each 128, at random the one below or above, so
             ///< that the expectation is the number; the same one each time for the same contents
  Int4,      ///< the same with 16 levels
};

/// How far a number x may be from what a lossy codec gives back:
///   of_number * |x| + of_range * (largest - smallest) + of_largest * largest |.| of its group + absolute.
/// What is given back as bf16 is rounded to that, which `of_number` and `of_largest` are without: 2^-8 of it more.
struct ErrorBound {
  double of_number = 0, of_range = 0, of_largest = 0, absolute = 0;
};
[[nodiscard]] ErrorBound error_bound(Codec codec);
/// Numbers of a group.
inline constexpr std::int64_t kGroupOfNumbers = 128;

/// How many bytes `bytes` of contents, numbers of `element` bytes each, take then, whatever they are: by Bits and the
/// lossy ones. nullopt for the others, which depend on them, and where the codec does not suit such numbers (see
/// below).
[[nodiscard]] std::optional<Bytes> code_bytes(Codec codec, std::size_t element, Bytes bytes);

/// How many bytes `contents`, numbers of `element` bytes each, take then; their own number where they cannot be written
/// so. Zeros: of 2, 4 or 8 bytes; Bits: of 1; Narrow: of 4 or 8; Exponents and the lossy ones: of 2 (bf16) or 4 (fp32),
/// BFloat16 only those of 4. On LibTorch's threads.
[[nodiscard]] Bytes encoded_bytes(Codec codec, std::size_t element, std::span<const std::byte> contents);

/// Writes them to the front of `to`. False, and what is in `to` means nothing, where they do not fit.
[[nodiscard]] bool encode(Codec codec, std::size_t element, std::span<const std::byte> contents,
                          std::span<std::byte> to);

/// Writes what encode() has written back to `contents`, which are as many as they were.
void decode(Codec codec, std::size_t element, std::span<const std::byte> from, std::span<std::byte> contents);

}  // namespace snug::memory
