#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "snug/base/bytes.h"

namespace snug::memory {

/// Ways to write numbers in fewer bytes, each of which gives back the same bits.
enum class Codec : std::uint8_t {
  Zeros,      ///< a bit for each number that says whether it is 0, and those that are not: what a ReLU makes
  Bits,       ///< a bit for each byte that is 0 or 1: masks
  Narrow,     ///< signed integers in as many bytes as the largest of them needs: indices
  Exponents,  ///< fp32 or bf16 numbers with half a byte for the exponent, as most lie close to the highest around them;
              ///< the others' come after them
};

/// How many bytes `contents`, numbers of `element` bytes each, take then; their own number where they cannot be written
/// so. Zeros: of 2, 4 or 8 bytes; Bits: of 1; Narrow: of 4 or 8; Exponents: of 2 (bf16) or 4. On LibTorch's threads.
[[nodiscard]] Bytes encoded_bytes(Codec codec, std::size_t element, std::span<const std::byte> contents);

/// Writes them to the front of `to`. False, and what is in `to` means nothing, where they do not fit.
[[nodiscard]] bool encode(Codec codec, std::size_t element, std::span<const std::byte> contents,
                          std::span<std::byte> to);

/// Writes what encode() has written back to `contents`, which are as many as they were.
void decode(Codec codec, std::size_t element, std::span<const std::byte> from, std::span<std::byte> contents);

}  // namespace snug::memory
