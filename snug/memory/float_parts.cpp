#include "snug/memory/float_parts.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace snug::memory {
namespace {

/// Bits of the exponent and nothing else, which are larger where it is.
constexpr std::uint32_t kExponent32 = 0x7F800000;
constexpr std::uint16_t kExponent16 = 0x7F80;

template <class Number>
Number highest_plainly(const Number* numbers, std::int64_t count, Number exponent) {
  Number most = 0;
  for (std::int64_t i = 0; i < count; ++i) most = std::max(most, static_cast<Number>(numbers[i] & exponent));
  return most;
}

// A byte for each number: its code; 0 where it has none.

void codes_of_plainly(const std::uint32_t* numbers, std::int64_t count, std::int32_t base, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto above = static_cast<std::int32_t>(numbers[i] >> 23U & 0xFFU) - base;
    codes[i] = static_cast<std::uint8_t>(above > 0 ? above : 0);
  }
}
void codes_of_plainly(const std::uint16_t* numbers, std::int64_t count, std::int32_t base, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < count; ++i) {
    const auto above = static_cast<std::int32_t>(numbers[i] >> 7U & 0xFFU) - base;
    codes[i] = static_cast<std::uint8_t>(above > 0 ? above : 0);
  }
}
std::int64_t zeros_in_plainly(const std::uint8_t* codes, std::int64_t count) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) found += codes[i] == 0 ? 1 : 0;
  return found;
}
void pack_plainly(const std::uint8_t* codes, std::int64_t pairs, std::uint8_t* to) {
  for (std::int64_t i = 0; i < pairs; ++i) to[i] = static_cast<std::uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4U);
}
void unpack_plainly(const std::uint8_t* from, std::int64_t pairs, std::uint8_t* codes) {
  for (std::int64_t i = 0; i < pairs; ++i) {
    codes[2 * i] = from[i] & 0xFU;
    codes[2 * i + 1] = from[i] >> 4U;
  }
}

// Signs and mantissas, and back with `codes`, which are exponents above the base, a byte each.

void put_rest_plainly(const std::uint32_t* numbers, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t rest = (numbers[i] & 0x7FFFFFU) | (numbers[i] >> 31U) << 23U;
    to[3 * i] = static_cast<std::uint8_t>(rest);
    to[3 * i + 1] = static_cast<std::uint8_t>(rest >> 8U);
    to[3 * i + 2] = static_cast<std::uint8_t>(rest >> 16U);
  }
}
void join_plainly(const std::uint8_t* rest, const std::uint8_t* codes, std::uint32_t base, std::int64_t count,
                  std::uint32_t* numbers) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t low = rest[3 * i] | static_cast<std::uint32_t>(rest[3 * i + 1]) << 8U |
                              static_cast<std::uint32_t>(rest[3 * i + 2]) << 16U;
    numbers[i] = (low & 0x7FFFFFU) | (low >> 23U) << 31U | (base + codes[i]) << 23U;
  }
}

void put_rest_plainly(const std::uint16_t* numbers, std::int64_t count, std::uint8_t* to) {
  for (std::int64_t i = 0; i < count; ++i)
    to[i] = static_cast<std::uint8_t>((numbers[i] & 0x7FU) | (numbers[i] >> 8U & 0x80U));
}
void join_plainly(const std::uint8_t* rest, const std::uint8_t* codes, std::uint32_t base, std::int64_t count,
                  std::uint16_t* numbers) {
  for (std::int64_t i = 0; i < count; ++i)
    numbers[i] = static_cast<std::uint16_t>((rest[i] & 0x7FU) | (rest[i] & 0x80U) << 8U | (base + codes[i]) << 7U);
}

#if defined(__x86_64__)

bool has_sse41() {
  static const bool has = __builtin_cpu_supports("sse4.1") != 0 && __builtin_cpu_supports("popcnt") != 0;
  return has;
}

constexpr std::int64_t kBytesAtOnce = 16;

/// Of so many whole vectors.
__attribute__((target("sse4.1"))) std::uint32_t highest_in_16(const std::uint32_t* numbers, std::int64_t whole) {
  const __m128i exponent = _mm_set1_epi32(static_cast<int>(kExponent32));
  __m128i most = _mm_setzero_si128();
  for (std::int64_t i = 0; i < whole; i += 4) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + i));
    most = _mm_max_epi32(most, _mm_and_si128(some, exponent));
  }
  std::uint32_t all[4];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(all), most);
  return *std::max_element(all, all + 4);
}

__attribute__((target("sse4.1"))) std::uint16_t highest_in_16(const std::uint16_t* numbers, std::int64_t whole) {
  const __m128i exponent = _mm_set1_epi16(kExponent16);
  __m128i most = _mm_setzero_si128();
  for (std::int64_t i = 0; i < whole; i += 8) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + i));
    most = _mm_max_epi16(most, _mm_and_si128(some, exponent));
  }
  std::uint16_t all[8];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(all), most);
  return *std::max_element(all, all + 8);
}

__attribute__((target("sse4.1"))) std::int64_t codes_of_16(const std::uint32_t* numbers, std::int64_t count,
                                                           std::int32_t base, std::uint8_t* codes) {
  const __m128i bases = _mm_set1_epi32(base), exponent = _mm_set1_epi32(0xFF);
  std::int64_t i = 0;
  for (; i + kBytesAtOnce <= count; i += kBytesAtOnce) {
    __m128i above[4];
    for (int k = 0; k < 4; ++k) {
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + i) + k);
      above[k] = _mm_sub_epi32(_mm_and_si128(_mm_srli_epi32(some, 23), exponent), bases);
    }
    // Below zero they become zero.
    const __m128i packed = _mm_packus_epi16(_mm_packus_epi32(above[0], above[1]), _mm_packus_epi32(above[2], above[3]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), packed);
  }
  return i;
}

__attribute__((target("sse4.1"))) std::int64_t codes_of_16(const std::uint16_t* numbers, std::int64_t count,
                                                           std::int32_t base, std::uint8_t* codes) {
  const __m128i bases = _mm_set1_epi16(static_cast<short>(base)), exponent = _mm_set1_epi16(0xFF);
  std::int64_t i = 0;
  for (; i + kBytesAtOnce <= count; i += kBytesAtOnce) {
    __m128i above[2];
    for (int k = 0; k < 2; ++k) {
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + i) + k);
      above[k] = _mm_sub_epi16(_mm_and_si128(_mm_srli_epi16(some, 7), exponent), bases);
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + i), _mm_packus_epi16(above[0], above[1]));
  }
  return i;
}

__attribute__((target("sse4.1,popcnt"))) std::int64_t zeros_in_16(const std::uint8_t* codes, std::int64_t whole) {
  std::int64_t found = 0;
  for (std::int64_t i = 0; i < whole; i += kBytesAtOnce) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    found += __builtin_popcount(static_cast<unsigned>(_mm_movemask_epi8(_mm_cmpeq_epi8(some, _mm_setzero_si128()))));
  }
  return found;
}

__attribute__((target("sse4.1"))) std::int64_t pack_16(const std::uint8_t* codes, std::int64_t pairs,
                                                       std::uint8_t* to) {
  const __m128i one_and_sixteen = _mm_set1_epi16(0x1001);
  std::int64_t i = 0;
  for (; i + kBytesAtOnce <= pairs; i += kBytesAtOnce) {
    const auto* const from = reinterpret_cast<const __m128i*>(codes + 2 * i);
    const __m128i first = _mm_maddubs_epi16(_mm_loadu_si128(from), one_and_sixteen);
    const __m128i second = _mm_maddubs_epi16(_mm_loadu_si128(from + 1), one_and_sixteen);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm_packus_epi16(first, second));
  }
  return i;
}

__attribute__((target("sse4.1"))) std::int64_t unpack_16(const std::uint8_t* from, std::int64_t pairs,
                                                         std::uint8_t* codes) {
  const __m128i half = _mm_set1_epi8(0xF);
  std::int64_t i = 0;
  for (; i + kBytesAtOnce <= pairs; i += kBytesAtOnce) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    const __m128i low = _mm_and_si128(some, half), high = _mm_and_si128(_mm_srli_epi16(some, 4), half);
    auto* const to = reinterpret_cast<__m128i*>(codes + 2 * i);
    _mm_storeu_si128(to, _mm_unpacklo_epi8(low, high));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi8(low, high));
  }
  return i;
}

constexpr std::int64_t kLanes = 4;
constexpr std::int64_t kLeft =
    2 * kLanes;  // done plainly: what is loaded and stored at once is longer than what is meant

__attribute__((target("sse4.1"))) std::int64_t put_rest_by_4(const std::uint32_t* numbers, std::int64_t count,
                                                             std::uint8_t* to) {
  const __m128i mantissas = _mm_set1_epi32(0x7FFFFF), signs = _mm_set1_epi32(0x800000);
  const __m128i three_of_four = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  std::int64_t i = 0;
  for (; i + kLeft <= count; i += kLanes) {
    const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + i));
    const __m128i rest = _mm_or_si128(_mm_and_si128(some, mantissas), _mm_and_si128(_mm_srli_epi32(some, 8), signs));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 3 * i), _mm_shuffle_epi8(rest, three_of_four));
  }
  return i;
}

__attribute__((target("sse4.1"))) std::int64_t join_by_4(const std::uint8_t* rest, const std::uint8_t* codes,
                                                         std::uint32_t base, std::int64_t count,
                                                         std::uint32_t* numbers) {
  const __m128i mantissas = _mm_set1_epi32(0x7FFFFF), signs = _mm_set1_epi32(static_cast<int>(0x80000000U));
  const __m128i bases = _mm_set1_epi32(static_cast<int>(base));
  const __m128i to_four = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
  std::int64_t i = 0;
  for (; i + kLeft <= count; i += kLanes) {
    const __m128i low = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(rest + 3 * i)), to_four);
    int four = 0;
    std::memcpy(&four, codes + i, sizeof(four));
    const __m128i exponents = _mm_add_epi32(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(four)), bases);
    const __m128i sign = _mm_and_si128(_mm_slli_epi32(low, 8), signs);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers + i),
                     _mm_or_si128(_mm_or_si128(_mm_and_si128(low, mantissas), sign), _mm_slli_epi32(exponents, 23)));
  }
  return i;
}

__attribute__((target("sse4.1"))) std::int64_t put_rest_by_4(const std::uint16_t* numbers, std::int64_t count,
                                                             std::uint8_t* to) {
  const __m128i mantissas = _mm_set1_epi16(0x7F), signs = _mm_set1_epi16(0x80);
  std::int64_t i = 0;
  for (; i + kBytesAtOnce <= count; i += kBytesAtOnce) {
    __m128i rest[2];
    for (int k = 0; k < 2; ++k) {
      const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers + i) + k);
      rest[k] = _mm_or_si128(_mm_and_si128(some, mantissas), _mm_and_si128(_mm_srli_epi16(some, 8), signs));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm_packus_epi16(rest[0], rest[1]));
  }
  return i;
}

__attribute__((target("sse4.1"))) std::int64_t join_by_4(const std::uint8_t* rest, const std::uint8_t* codes,
                                                         std::uint32_t base, std::int64_t count,
                                                         std::uint16_t* numbers) {
  const __m128i mantissas = _mm_set1_epi16(0x7F), signs = _mm_set1_epi16(static_cast<short>(0x8000));
  const __m128i bases = _mm_set1_epi16(static_cast<short>(base));
  std::int64_t i = 0;
  for (; i + kBytesAtOnce / 2 <= count; i += kBytesAtOnce / 2) {
    const __m128i low = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(rest + i)));
    const __m128i code = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + i)));
    const __m128i sign = _mm_and_si128(_mm_slli_epi16(low, 8), signs);
    const __m128i exponents = _mm_slli_epi16(_mm_add_epi16(code, bases), 7);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(numbers + i),
                     _mm_or_si128(_mm_or_si128(_mm_and_si128(low, mantissas), sign), exponents));
  }
  return i;
}

#endif

}  // namespace

template <class Number>
unsigned FloatParts<Number>::highest_exponent(const Number* numbers, std::int64_t count) {
  constexpr Number kExponent = sizeof(Number) == 4 ? static_cast<Number>(kExponent32) : kExponent16;
  std::int64_t whole = 0;
  Number most = 0;
#if defined(__x86_64__)
  if (has_sse41()) {
    whole = count / kBytesAtOnce * kBytesAtOnce;
    most = highest_in_16(numbers, whole);
  }
#endif
  return exponent(std::max(most, highest_plainly(numbers + whole, count - whole, kExponent)));
}

template <class Number>
void FloatParts<Number>::codes(const Number* numbers, std::int64_t count, std::int32_t base, std::uint8_t* to) {
  std::int64_t done = 0;
#if defined(__x86_64__)
  if (has_sse41()) done = codes_of_16(numbers, count, base, to);
#endif
  codes_of_plainly(numbers + done, count - done, base, to + done);
}

std::int64_t zeros_in(const std::uint8_t* codes, std::int64_t count) {
  std::int64_t done = 0, found = 0;
#if defined(__x86_64__)
  if (has_sse41()) {
    done = count / kBytesAtOnce * kBytesAtOnce;
    found = zeros_in_16(codes, done);
  }
#endif
  return found + zeros_in_plainly(codes + done, count - done);
}

void pack_codes(const std::uint8_t* codes, std::int64_t pairs, std::uint8_t* to) {
  std::int64_t done = 0;
#if defined(__x86_64__)
  if (has_sse41()) done = pack_16(codes, pairs, to);
#endif
  pack_plainly(codes + 2 * done, pairs - done, to + done);
}

void unpack_codes(const std::uint8_t* from, std::int64_t pairs, std::uint8_t* codes) {
  std::int64_t done = 0;
#if defined(__x86_64__)
  if (has_sse41()) done = unpack_16(from, pairs, codes);
#endif
  unpack_plainly(from + done, pairs - done, codes + 2 * done);
}

template <class Number>
void FloatParts<Number>::put_rest(const Number* numbers, std::int64_t count, std::uint8_t* to) {
  std::int64_t done = 0;
#if defined(__x86_64__)
  if (has_sse41()) done = put_rest_by_4(numbers, count, to);
#endif
  put_rest_plainly(numbers + done, count - done, to + done * static_cast<std::int64_t>(kRest));
}

template <class Number>
void FloatParts<Number>::join(const std::uint8_t* rest, const std::uint8_t* codes, std::uint32_t base,
                              std::int64_t count, Number* numbers) {
  std::int64_t done = 0;
#if defined(__x86_64__)
  if (has_sse41()) done = join_by_4(rest, codes, base, count, numbers);
#endif
  join_plainly(rest + done * static_cast<std::int64_t>(kRest), codes + done, base, count - done, numbers + done);
}

template struct FloatParts<std::uint16_t>;
template struct FloatParts<std::uint32_t>;

}  // namespace snug::memory
