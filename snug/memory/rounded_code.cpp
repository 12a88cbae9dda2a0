#include "snug/memory/rounded_code.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "snug/memory/float_parts.h"
#include "snug/memory/number_blocks.h"
#include "snug/memory/rounding_kernel.h"

namespace snug::memory {
namespace {

constexpr std::int64_t kGroup = kGroupOfNumbers;
static_assert(kBlock % kGroup == 0);

using Codes = std::array<std::uint8_t, kGroup + 1>;  // a byte each, and one for the half of a last byte

// Ways to write a group: its scale, and codes of so many bits.

struct AsFloat8 {
  using Scale = float;
  static constexpr std::int64_t kBits = 8;
  static bool encode(const float* numbers, std::int64_t count, std::uint32_t, Scale& scale, std::uint8_t* to) {
    return to_float8(numbers, count, scale, to);
  }
  static void decode(const std::uint8_t* from, std::int64_t count, const Scale& scale, float* numbers) {
    from_float8(from, count, scale, numbers);
  }
};

struct AsInt8 {
  using Scale = Levels;
  static constexpr std::int64_t kBits = 8;
  static bool encode(const float* numbers, std::int64_t count, std::uint32_t first, Scale& scale, std::uint8_t* to) {
    return to_levels(numbers, count, first, 255, scale, to);
  }
  static void decode(const std::uint8_t* from, std::int64_t count, const Scale& scale, float* numbers) {
    from_levels(from, count, scale, numbers);
  }
};

struct AsInt4 {
  using Scale = Levels;
  static constexpr std::int64_t kBits = 4;
  static bool encode(const float* numbers, std::int64_t count, std::uint32_t first, Scale& scale, std::uint8_t* to) {
    Codes codes;
    const bool finite = to_levels(numbers, count, first, 15, scale, codes.data());
    codes[static_cast<std::size_t>(count)] = 0;
    pack_codes(codes.data(), (count + 1) / 2, to);
    return finite;
  }
  static void decode(const std::uint8_t* from, std::int64_t count, const Scale& scale, float* numbers) {
    Codes codes;
    unpack_codes(from, (count + 1) / 2, codes.data());
    from_levels(codes.data(), count, scale, numbers);
  }
};

std::int64_t groups_of(std::int64_t numbers) { return (numbers + kGroup - 1) / kGroup; }

/// Scales of all groups; then their codes.
template <class As>
struct Rounded {
  using Scale = typename As::Scale;
  static std::size_t bytes_of_scales(std::int64_t count) {
    return static_cast<std::size_t>(groups_of(count)) * sizeof(Scale);
  }
  static std::size_t bytes(std::int64_t count) {
    return bytes_of_scales(count) + static_cast<std::size_t>((count * As::kBits + 7) / 8);
  }

  /// work(group, its first number, how many there are)
  template <class Work>
  static void for_groups(std::int64_t count, const Work& work) {
    for_blocks(count, [&](std::int64_t, std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; i += kGroup) work(i / kGroup, i, std::min(kGroup, last - i));
    });
  }

  template <class Number>
  static bool encode(const Number* numbers, std::int64_t count, std::byte* to) {
    auto* const scales = reinterpret_cast<Scale*>(to);
    auto* const codes = reinterpret_cast<std::uint8_t*>(to + bytes_of_scales(count));
    std::atomic<bool> finite{true};
    for_groups(count, [&](std::int64_t group, std::int64_t first, std::int64_t here) {
      std::array<float, kGroup> wide;
      const float* from = nullptr;
      if constexpr (std::is_same_v<Number, float>) {
        from = numbers + first;
      } else {
        from_bfloat16(numbers + first, here, wide.data());
        from = wide.data();
      }
      if (!As::encode(from, here, static_cast<std::uint32_t>(first), scales[group], codes + first * As::kBits / 8))
        finite.store(false, std::memory_order_relaxed);
    });
    return finite;
  }

  template <class Number>
  static void decode(const std::byte* from, std::int64_t count, Number* numbers) {
    const auto* const scales = reinterpret_cast<const Scale*>(from);
    const auto* const codes = reinterpret_cast<const std::uint8_t*>(from + bytes_of_scales(count));
    for_groups(count, [&](std::int64_t group, std::int64_t first, std::int64_t here) {
      const std::uint8_t* const these = codes + first * As::kBits / 8;
      if constexpr (std::is_same_v<Number, float>) {
        As::decode(these, here, scales[group], numbers + first);
      } else {
        std::array<float, kGroup> wide;
        As::decode(these, here, scales[group], wide.data());
        (void)to_bfloat16(wide.data(), here, numbers + first);
      }
    });
  }
};

/// fp32 numbers, and no others.
struct AsBFloat16 {
  static std::size_t bytes(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(std::uint16_t); }
  template <class Number>
  static bool encode(const Number* numbers, std::int64_t count, std::byte* to) {
    std::atomic<bool> finite{std::is_same_v<Number, float>};
    if constexpr (std::is_same_v<Number, float>) {
      auto* const halves = reinterpret_cast<std::uint16_t*>(to);
      for_blocks(count, [&](std::int64_t, std::int64_t first, std::int64_t last) {
        if (!to_bfloat16(numbers + first, last - first, halves + first)) finite.store(false, std::memory_order_relaxed);
      });
    }
    return finite;
  }
  template <class Number>
  static void decode(const std::byte* from, std::int64_t count, Number* numbers) {
    if constexpr (std::is_same_v<Number, float>) {
      const auto* const halves = reinterpret_cast<const std::uint16_t*>(from);
      for_blocks(count, [&](std::int64_t, std::int64_t first, std::int64_t last) {
        from_bfloat16(halves + first, last - first, numbers + first);
      });
    }
  }
};

template <class Call>
auto with_code(Codec codec, const Call& call) {
  switch (codec) {
    case Codec::BFloat16:
      return call(AsBFloat16());
    case Codec::Float8:
      return call(Rounded<AsFloat8>());
    case Codec::Int8:
      return call(Rounded<AsInt8>());
    default:
      return call(Rounded<AsInt4>());
  }
}

std::int64_t count_of(std::size_t element, std::size_t bytes) { return static_cast<std::int64_t>(bytes / element); }

/// Whether all exponents are below that.
template <class Number>
bool are_below(unsigned exponent, std::span<const std::byte> contents) {
  const auto* const numbers = reinterpret_cast<const Number*>(contents.data());
  std::atomic<bool> below{true};
  for_blocks(count_of(sizeof(Number), contents.size()), [&](std::int64_t, std::int64_t first, std::int64_t last) {
    if (FloatParts<Number>::highest_exponent(numbers + first, last - first) >= exponent)
      below.store(false, std::memory_order_relaxed);
  });
  return below;
}

}  // namespace

ErrorBound error_bound(Codec codec) {
  constexpr double kRounding = 0x1p-20;  // of products and sums in fp32
  constexpr double kTiny = 2e-30;        // what rounding_kernel takes for equal
  switch (codec) {
    case Codec::BFloat16:
      return {.of_number = 0x1p-8, .absolute = 1e-40};
    case Codec::Float8:  // below the smallest normal one, 2^-6 of 448, multiples of 2^-9
      return {.of_number = 0x1p-4, .of_largest = 0x1p-10 / 448 + kRounding, .absolute = kTiny};
    case Codec::Int8:
      return {.of_range = 1.0 / 255, .of_largest = kRounding, .absolute = kTiny};
    case Codec::Int4:
      return {.of_range = 1.0 / 15, .of_largest = kRounding, .absolute = kTiny};
    case Codec::Zeros:
    case Codec::Bits:
    case Codec::Narrow:
    case Codec::Exponents:
      break;
  }
  return {};
}

Bytes rounded_code_bytes(Codec codec, std::int64_t numbers) {
  return with_code(codec, [&](auto code) { return static_cast<Bytes>(decltype(code)::bytes(numbers)); });
}

Bytes rounded_bytes(Codec codec, std::size_t element, std::span<const std::byte> contents) {
  constexpr unsigned kInfinite = 255;
  const unsigned below = codec == Codec::Float8 ? kInfinite : kInfinite - 1;  // the largest may come back as infinity
  const bool possible =
      element == sizeof(float) ? are_below<std::uint32_t>(below, contents) : are_below<std::uint16_t>(below, contents);
  if (!possible) return std::ssize(contents);
  return rounded_code_bytes(codec, count_of(element, contents.size()));
}

bool encode_rounded(Codec codec, std::size_t element, std::span<const std::byte> contents, std::span<std::byte> to) {
  const std::int64_t count = count_of(element, contents.size());
  return with_code(codec, [&](auto code) {
    using Code = decltype(code);
    if (Code::bytes(count) > to.size()) return false;
    if (element == sizeof(float))
      return Code::encode(reinterpret_cast<const float*>(contents.data()), count, to.data());
    return Code::encode(reinterpret_cast<const std::uint16_t*>(contents.data()), count, to.data());
  });
}

void decode_rounded(Codec codec, std::size_t element, std::span<const std::byte> from, std::span<std::byte> contents) {
  const std::int64_t count = count_of(element, contents.size());
  with_code(codec, [&](auto code) {
    using Code = decltype(code);
    if (element == sizeof(float)) {
      Code::decode(from.data(), count, reinterpret_cast<float*>(contents.data()));
    } else {
      Code::decode(from.data(), count, reinterpret_cast<std::uint16_t*>(contents.data()));
    }
  });
}

}  // namespace snug::memory
