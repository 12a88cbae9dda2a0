#include "snug/memory/zeros_kernel.h"

#include <algorithm>
#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace snug::memory {
namespace {

constexpr std::int64_t kBitsOfWord = 64;

template <class Number>
std::int64_t count_nonzero_of(const Number* numbers, std::int64_t count) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) found += numbers[i] != 0 ? 1 : 0;
  return found;
}

template <class Number>
void compress_word(const Number* numbers, std::int64_t count, std::uint64_t& word, Number*& values, const Number* end) {
  std::uint64_t bits = 0;
  Number last = 0;  // where there is no more room, as the number that would go there is zero
  for (std::int64_t k = 0; k < count; ++k) {
    const std::uint64_t is = numbers[k] != 0 ? 1 : 0;
    bits |= is << static_cast<unsigned>(k);
    *(values != end ? values : &last) = numbers[k];
    values += is;
  }
  word = bits;
}

template <class Number>
void expand_word(std::uint64_t word, const Number*& values, const Number* end, Number* numbers, std::int64_t count) {
  static constexpr Number kZero = 0;
  for (std::int64_t k = 0; k < count; ++k) {
    const bool is = (word >> static_cast<unsigned>(k) & 1U) != 0;
    const Number next = *(values != end ? values : &kZero);
    numbers[k] = is ? next : Number{0};
    values += is ? 1 : 0;
  }
}

template <class Number>
std::int64_t compress_plainly(const Number* numbers, std::int64_t count, std::uint64_t* words, Number* values,
                              const Number* end) {
  const Number* const first = values;
  for (std::int64_t i = 0; i < count; i += kBitsOfWord)
    compress_word(numbers + i, std::min(kBitsOfWord, count - i), words[i / kBitsOfWord], values, end);
  return values - first;
}

template <class Number>
void expand_plainly(const std::uint64_t* words, const Number* values, const Number* end, Number* numbers,
                    std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kBitsOfWord)
    expand_word(words[i / kBitsOfWord], values, end, numbers + i, std::min(kBitsOfWord, count - i));
}

#if defined(__x86_64__)

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") != 0;
  return has;
}

constexpr std::int64_t kAtOnceBy16 = 16;

__attribute__((target("avx512f,popcnt"))) std::int64_t compress_by_16(const std::uint32_t* numbers, std::int64_t count,
                                                                      std::uint64_t* words, std::uint32_t* values,
                                                                      const std::uint32_t* end) {
  const std::uint32_t* const first = values;
  std::int64_t i = 0;
  for (; i + kBitsOfWord <= count; i += kBitsOfWord) {
    std::uint64_t word = 0;
    for (std::int64_t k = 0; k < kBitsOfWord; k += kAtOnceBy16) {
      const __m512i some = _mm512_loadu_si512(numbers + i + k);
      const __mmask16 is = _mm512_test_epi32_mask(some, some);
      const __m512i packed = _mm512_maskz_compress_epi32(is, some);
      const auto found = static_cast<unsigned>(__builtin_popcount(is));
      if (end - values >= kAtOnceBy16) {
        _mm512_storeu_si512(values, packed);
      } else {
        _mm512_mask_storeu_epi32(values, static_cast<__mmask16>((1U << found) - 1U), packed);
      }
      values += found;
      word |= static_cast<std::uint64_t>(is) << static_cast<unsigned>(k);
    }
    words[i / kBitsOfWord] = word;
  }
  const std::int64_t found = values - first;
  return i < count ? found + compress_plainly(numbers + i, count - i, words + i / kBitsOfWord, values, end) : found;
}

__attribute__((target("avx512f,popcnt"))) void expand_by_16(const std::uint64_t* words, const std::uint32_t* values,
                                                            const std::uint32_t* end, std::uint32_t* numbers,
                                                            std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kBitsOfWord <= count; i += kBitsOfWord) {
    const std::uint64_t word = words[i / kBitsOfWord];
    for (std::int64_t k = 0; k < kBitsOfWord; k += kAtOnceBy16) {
      const auto is = static_cast<__mmask16>(word >> static_cast<unsigned>(k));
      const auto found = static_cast<unsigned>(__builtin_popcount(is));
      const __m512i packed = end - values >= kAtOnceBy16
                                 ? _mm512_loadu_si512(values)
                                 : _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1U << found) - 1U), values);
      _mm512_storeu_si512(numbers + i + k, _mm512_maskz_expand_epi32(is, packed));
      values += found;
    }
  }
  if (i < count) expand_plainly(words + i / kBitsOfWord, values, end, numbers + i, count - i);
}

#endif

}  // namespace

std::int64_t count_nonzero(const std::uint16_t* numbers, std::int64_t count) {
  return count_nonzero_of(numbers, count);
}
std::int64_t count_nonzero(const std::uint32_t* numbers, std::int64_t count) {
  return count_nonzero_of(numbers, count);
}
std::int64_t count_nonzero(const std::uint64_t* numbers, std::int64_t count) {
  return count_nonzero_of(numbers, count);
}

std::int64_t compress(const std::uint16_t* numbers, std::int64_t count, std::uint64_t* words, std::uint16_t* values,
                      const std::uint16_t* end) {
  return compress_plainly(numbers, count, words, values, end);
}
std::int64_t compress(const std::uint32_t* numbers, std::int64_t count, std::uint64_t* words, std::uint32_t* values,
                      const std::uint32_t* end) {
#if defined(__x86_64__)
  if (has_avx512()) return compress_by_16(numbers, count, words, values, end);
#endif
  return compress_plainly(numbers, count, words, values, end);
}
std::int64_t compress(const std::uint64_t* numbers, std::int64_t count, std::uint64_t* words, std::uint64_t* values,
                      const std::uint64_t* end) {
  return compress_plainly(numbers, count, words, values, end);
}

void expand(const std::uint64_t* words, const std::uint16_t* values, const std::uint16_t* end, std::uint16_t* numbers,
            std::int64_t count) {
  expand_plainly(words, values, end, numbers, count);
}
void expand(const std::uint64_t* words, const std::uint32_t* values, const std::uint32_t* end, std::uint32_t* numbers,
            std::int64_t count) {
#if defined(__x86_64__)
  if (has_avx512()) return expand_by_16(words, values, end, numbers, count);
#endif
  expand_plainly(words, values, end, numbers, count);
}
void expand(const std::uint64_t* words, const std::uint64_t* values, const std::uint64_t* end, std::uint64_t* numbers,
            std::int64_t count) {
  expand_plainly(words, values, end, numbers, count);
}

}  // namespace snug::memory
