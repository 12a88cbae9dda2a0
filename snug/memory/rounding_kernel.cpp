#include "snug/memory/rounding_kernel.h"

#include <algorithm>
#include <bit>
#include <limits>

// Loops that the compiler makes vectors of, for each instruction set: no product and sum become one operation here (see
// CMakeLists.txt), so that all of them have the same bits.
#define SNUG_LOOP inline __attribute__((always_inline))

namespace snug::memory {
namespace {

constexpr float kTiny = 1e-30F;  // what differs by less than this is taken for equal: scales stay normal numbers
constexpr std::uint32_t kInfinity = 0x7F800000, kAbsolute = 0x7FFFFFFF;
constexpr std::uint32_t kHuge = 0x7F000000;  // 2^127: sums of levels stay finite
constexpr float kLargestFloat8 = 448;

inline std::uint32_t bits_of(float number) { return std::bit_cast<std::uint32_t>(number); }

/// A number from [0, 1) that looks random, of 24 bits: a multiplicative hash with xor-shifts between.
inline float uniform(std::uint32_t bits, std::uint32_t where) {
  std::uint32_t x = bits * 0x9E3779B1U + where * 0x85EBCA77U;
  x ^= x >> 15U;
  x *= 0x2C1B3C6DU;
  x ^= x >> 12U;
  x *= 0x297A2D39U;
  x ^= x >> 15U;
  return static_cast<float>(static_cast<std::int32_t>(x >> 8U)) * 0x1p-24F;
}

SNUG_LOOP bool loop_to_levels(const float* numbers, std::int64_t count, std::uint32_t first, std::int32_t last,
                              Levels& levels, std::uint8_t* codes) {
  // As integers in the same order: comparisons of those make vectors.
  std::int32_t lowest = std::numeric_limits<std::int32_t>::max(), highest = std::numeric_limits<std::int32_t>::min();
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::int32_t>(bits_of(numbers[i]));
    const std::int32_t ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF);
    lowest = std::min(lowest, ordered);
    highest = std::max(highest, ordered);
    largest = std::max(largest, static_cast<std::uint32_t>(bits) & kAbsolute);
  }
  if (largest >= kHuge) return false;
  const auto number_of = [](std::int32_t ordered) {
    return std::bit_cast<float>(ordered ^ ((ordered >> 31) & 0x7FFFFFFF));
  };
  const float low = number_of(lowest), range = number_of(highest) - low;
  if (!(range < std::numeric_limits<float>::max())) return false;
  const auto most = static_cast<float>(last);
  const bool flat = range < kTiny;
  levels = {low, flat ? 0 : range / most};
  const float per_step = flat ? 0 : most / range;
  for (std::int64_t i = 0; i < count; ++i) {
    const float random = uniform(bits_of(numbers[i]), first + static_cast<std::uint32_t>(i));
    const float level = (numbers[i] - low) * per_step + random;
    codes[i] = static_cast<std::uint8_t>(std::min(static_cast<std::int32_t>(level), last));
  }
  return true;
}

SNUG_LOOP void loop_from_levels(const std::uint8_t* codes, std::int64_t count, const Levels& levels, float* numbers) {
  for (std::int64_t i = 0; i < count; ++i)
    numbers[i] = levels.lowest + levels.step * static_cast<float>(static_cast<std::int32_t>(codes[i]));
}

SNUG_LOOP bool loop_to_float8(const float* numbers, std::int64_t count, float& scale, std::uint8_t* codes) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, bits_of(numbers[i]) & kAbsolute);
  if (largest >= kInfinity) return false;
  const float most = std::bit_cast<float>(largest);
  const bool flat = most < kTiny;
  scale = flat ? 0 : most / kLargestFloat8;
  const float per_unit = flat ? 0 : kLargestFloat8 / most;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = bits_of(numbers[i] * per_unit);
    const float size = std::min(std::bit_cast<float>(bits & kAbsolute), kLargestFloat8);
    // The highest 3 bits of the mantissa, and the exponent above that of the smallest normal number, 2^-6.
    const std::uint32_t all = bits_of(size);
    const std::uint32_t normal = ((all + 0x7FFFFU + (all >> 20U & 1U)) >> 20U) - (120U << 3U);
    // Below that, multiples of 2^-9: what such a sum leaves in its lowest bits.
    const std::uint32_t small = bits_of(size * 512.0F + 12582912.0F) & 0xFFU;
    const std::uint32_t code = size >= 0x1p-6F ? normal : small;
    codes[i] = static_cast<std::uint8_t>(code | (bits >> 31U) << 7U);
  }
  return true;
}

SNUG_LOOP void loop_from_float8(const std::uint8_t* codes, std::int64_t count, float scale, float* numbers) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t code = codes[i], size = code & 0x7FU;
    const std::uint32_t normal = (size + (120U << 3U)) << 20U;
    const std::uint32_t small = bits_of(static_cast<float>(static_cast<std::int32_t>(size)) * 0x1p-9F);
    const std::uint32_t is_normal = 0U - static_cast<std::uint32_t>(size >= 8);
    const float found = std::bit_cast<float>((normal & is_normal) | (small & ~is_normal)) * scale;
    numbers[i] = std::bit_cast<float>(bits_of(found) | (code >> 7U) << 31U);
  }
}

SNUG_LOOP bool loop_to_bfloat16(const float* numbers, std::int64_t count, std::uint16_t* to) {
  std::uint32_t largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = bits_of(numbers[i]);
    largest = std::max(largest, bits & kAbsolute);
    to[i] = static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U);
  }
  return largest < 0x7F7F8000;  // from where on the nearest is infinite
}

SNUG_LOOP void loop_from_bfloat16(const std::uint16_t* numbers, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(numbers[i]) << 16U);
}

// NOLINTBEGIN(cppcoreguidelines-macro-usage, bugprone-macro-parentheses): an instruction set is no parameter of
// anything else
#define SNUG_LOOPS(Name, TARGET)                                                                                   \
  struct Name {                                                                                                    \
    TARGET static bool to_levels(const float* numbers, std::int64_t count, std::uint32_t first, std::int32_t last, \
                                 Levels& levels, std::uint8_t* codes) {                                            \
      return loop_to_levels(numbers, count, first, last, levels, codes);                                           \
    }                                                                                                              \
    TARGET static void from_levels(const std::uint8_t* codes, std::int64_t count, const Levels& levels,            \
                                   float* numbers) {                                                               \
      loop_from_levels(codes, count, levels, numbers);                                                             \
    }                                                                                                              \
    TARGET static bool to_float8(const float* numbers, std::int64_t count, float& scale, std::uint8_t* codes) {    \
      return loop_to_float8(numbers, count, scale, codes);                                                         \
    }                                                                                                              \
    TARGET static void from_float8(const std::uint8_t* codes, std::int64_t count, float scale, float* numbers) {   \
      loop_from_float8(codes, count, scale, numbers);                                                              \
    }                                                                                                              \
    TARGET static bool to_bfloat16(const float* numbers, std::int64_t count, std::uint16_t* to) {                  \
      return loop_to_bfloat16(numbers, count, to);                                                                 \
    }                                                                                                              \
    TARGET static void from_bfloat16(const std::uint16_t* numbers, std::int64_t count, float* to) {                \
      loop_from_bfloat16(numbers, count, to);                                                                      \
    }                                                                                                              \
  }
// NOLINTEND(cppcoreguidelines-macro-usage, bugprone-macro-parentheses)

SNUG_LOOPS(Plain, );
#if defined(__x86_64__)
SNUG_LOOPS(Avx2, __attribute__((target("avx2"))));
SNUG_LOOPS(Avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))));
#endif

/// call(Loops()) of the widest vectors that the processor has.
template <class Call>
auto with_loops(const Call& call) {
#if defined(__x86_64__)
  static const bool is_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  static const bool is_256 = __builtin_cpu_supports("avx2");
  if (is_512) return call(Avx512());
  if (is_256) return call(Avx2());
#endif
  return call(Plain());
}

}  // namespace

bool to_levels(const float* numbers, std::int64_t count, std::uint32_t first, std::int32_t last, Levels& levels,
               std::uint8_t* codes) {
  return with_loops([&](auto loops) { return loops.to_levels(numbers, count, first, last, levels, codes); });
}
void from_levels(const std::uint8_t* codes, std::int64_t count, const Levels& levels, float* numbers) {
  with_loops([&](auto loops) { loops.from_levels(codes, count, levels, numbers); });
}
bool to_float8(const float* numbers, std::int64_t count, float& scale, std::uint8_t* codes) {
  return with_loops([&](auto loops) { return loops.to_float8(numbers, count, scale, codes); });
}
void from_float8(const std::uint8_t* codes, std::int64_t count, float scale, float* numbers) {
  with_loops([&](auto loops) { loops.from_float8(codes, count, scale, numbers); });
}
bool to_bfloat16(const float* numbers, std::int64_t count, std::uint16_t* to) {
  return with_loops([&](auto loops) { return loops.to_bfloat16(numbers, count, to); });
}
void from_bfloat16(const std::uint16_t* numbers, std::int64_t count, float* to) {
  with_loops([&](auto loops) { loops.from_bfloat16(numbers, count, to); });
}

}  // namespace snug::memory
