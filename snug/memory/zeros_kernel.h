#pragma once

#include <cstdint>

// What one thread does of memory::Codec::Zeros. Bits are of the numbers in their order, from the lowest of each word
// on; a last word that is not full ends with zeros. With AVX-512 where the processor has it.
namespace snug::memory {

[[nodiscard]] std::int64_t count_nonzero(const std::uint16_t* numbers, std::int64_t count);
[[nodiscard]] std::int64_t count_nonzero(const std::uint32_t* numbers, std::int64_t count);
[[nodiscard]] std::int64_t count_nonzero(const std::uint64_t* numbers, std::int64_t count);

/// Writes their bits, and those that are not zero to `values`; none of them beyond `end`. Returns how many those are.
std::int64_t compress(const std::uint16_t* numbers, std::int64_t count, std::uint64_t* words, std::uint16_t* values,
                      const std::uint16_t* end);
std::int64_t compress(const std::uint32_t* numbers, std::int64_t count, std::uint64_t* words, std::uint32_t* values,
                      const std::uint32_t* end);
std::int64_t compress(const std::uint64_t* numbers, std::int64_t count, std::uint64_t* words, std::uint64_t* values,
                      const std::uint64_t* end);

/// The other way round.
void expand(const std::uint64_t* words, const std::uint16_t* values, const std::uint16_t* end, std::uint16_t* numbers,
            std::int64_t count);
void expand(const std::uint64_t* words, const std::uint32_t* values, const std::uint32_t* end, std::uint32_t* numbers,
            std::int64_t count);
void expand(const std::uint64_t* words, const std::uint64_t* values, const std::uint64_t* end, std::uint64_t* numbers,
            std::int64_t count);

}  // namespace snug::memory
