#include "snug/memory/codec.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "snug/memory/exponents_code.h"
#include "snug/memory/number_blocks.h"
#include "snug/memory/rounded_code.h"
#include "snug/memory/zeros_kernel.h"

namespace snug::memory {
namespace {

std::size_t bytes_of_bits(std::int64_t numbers) { return static_cast<std::size_t>((numbers + 63) / 64) * 8; }

// --- zeros: where the values of each block begin; words of bits; what is not zero
// -------------------------------------

template <class Number>
struct Zeros {
  static std::span<const Number> numbers(std::span<const std::byte> contents) {
    return {reinterpret_cast<const Number*>(contents.data()), contents.size() / sizeof(Number)};
  }
  static std::size_t bytes_of_begins(std::int64_t count) { return static_cast<std::size_t>(blocks_of(count)) * 8; }
  static std::size_t bytes_in_front(std::int64_t count) { return bytes_of_begins(count) + bytes_of_bits(count); }

  static Bytes bytes(std::span<const std::byte> contents) {
    const auto all = numbers(contents);
    std::atomic<std::int64_t> found{0};
    for_blocks(std::ssize(all), [&](std::int64_t, std::int64_t first, std::int64_t last) {
      found.fetch_add(count_nonzero(all.data() + first, last - first), std::memory_order_relaxed);
    });
    return static_cast<Bytes>(bytes_in_front(std::ssize(all))) + found * Bytes{sizeof(Number)};
  }

  static bool encode(std::span<const std::byte> contents, std::span<std::byte> to) {
    const auto all = numbers(contents);
    const std::size_t front = bytes_in_front(std::ssize(all));
    if (front > to.size()) return false;
    auto* const begins = reinterpret_cast<std::int64_t*>(to.data());
    auto* const words = reinterpret_cast<std::uint64_t*>(to.data() + bytes_of_begins(std::ssize(all)));
    auto* const values = reinterpret_cast<Number*>(to.data() + front);
    SharedRoom room(static_cast<std::int64_t>((to.size() - front) / sizeof(Number)));
    // One pass: how many there are shows when they are there, and then where they go. Blocks come as their threads do.
    for_blocks(std::ssize(all), [&](std::int64_t block, std::int64_t first, std::int64_t last) {
      thread_local std::vector<Number> packed;
      packed.resize(static_cast<std::size_t>(kBlock));
      const std::int64_t count =
          compress(all.data() + first, last - first, words + first / 64, packed.data(), packed.data() + kBlock);
      const auto begin = room.take(count);
      if (!begin) return;
      begins[block] = *begin;
      std::copy_n(packed.data(), count, values + *begin);
    });
    return room.was_enough();
  }

  static void decode(std::span<const std::byte> from, std::span<std::byte> contents) {
    const auto count = static_cast<std::int64_t>(contents.size() / sizeof(Number));
    const std::size_t front = bytes_in_front(count);
    const auto* const begins = reinterpret_cast<const std::int64_t*>(from.data());
    const auto* const words = reinterpret_cast<const std::uint64_t*>(from.data() + bytes_of_begins(count));
    const auto* const values = reinterpret_cast<const Number*>(from.data() + front);
    const Number* const end = values + (from.size() - front) / sizeof(Number);
    auto* const all = reinterpret_cast<Number*>(contents.data());
    for_blocks(count, [&](std::int64_t block, std::int64_t first, std::int64_t last) {
      expand(words + first / 64, values + begins[block], end, all + first, last - first);
    });
  }
};

template <class Call>
auto with_number_of(std::size_t element, const Call& call) {
  switch (element) {
    case 2:
      return call(std::uint16_t{});
    case 8:
      return call(std::uint64_t{});
    default:
      return call(std::uint32_t{});
  }
}

// --- bits ------------------------------------------------------------------------------------------------------------

bool are_bits(std::span<const std::byte> contents) {
  std::atomic<unsigned> any{0};
  for_blocks(std::ssize(contents), [&](std::int64_t, std::int64_t first, std::int64_t last) {
    unsigned all = 0;
    for (std::int64_t i = first; i < last; ++i) all |= std::to_integer<unsigned>(contents[static_cast<std::size_t>(i)]);
    any.fetch_or(all, std::memory_order_relaxed);
  });
  return any <= 1;
}

void encode_bits(std::span<const std::byte> contents, std::span<std::byte> to) {
  const auto* const from = reinterpret_cast<const std::uint8_t*>(contents.data());
  for_blocks(std::ssize(contents), [&](std::int64_t, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; i += 8) {
      unsigned packed = 0;
      for (std::int64_t k = 0; k < std::min<std::int64_t>(8, last - i); ++k)
        packed |= static_cast<unsigned>(from[i + k]) << k;
      to[static_cast<std::size_t>(i / 8)] = static_cast<std::byte>(packed);
    }
  });
}

void decode_bits(std::span<const std::byte> from, std::span<std::byte> contents) {
  for_blocks(std::ssize(contents), [&](std::int64_t, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      const auto packed = std::to_integer<unsigned>(from[static_cast<std::size_t>(i / 8)]);
      contents[static_cast<std::size_t>(i)] = static_cast<std::byte>(packed >> (i % 8) & 1U);
    }
  });
}

// --- narrow: how many bytes each takes, in eight; then they ----------------------------------------------------------

constexpr std::size_t kWidthBytes = 8;

template <class Wide>
std::int64_t bytes_needed(std::span<const Wide> all) {
  std::atomic<std::int64_t> needed{1};
  for_blocks(std::ssize(all), [&](std::int64_t, std::int64_t first, std::int64_t last) {
    const auto [least, most] = std::minmax_element(all.begin() + first, all.begin() + last);
    std::int64_t mine = 1;
    for (; mine < std::int64_t{sizeof(Wide)}; mine *= 2) {
      const std::int64_t limit = std::int64_t{1} << (8 * mine - 1);
      if (*least >= -limit && *most < limit) break;
    }
    std::int64_t before = needed.load();
    while (before < mine && !needed.compare_exchange_weak(before, mine)) {
    }
  });
  return needed;
}

template <class Call>
void with_width(std::int64_t bytes, const Call& call) {
  switch (bytes) {
    case 1:
      return call(std::int8_t{});
    case 2:
      return call(std::int16_t{});
    case 4:
      return call(std::int32_t{});
    default:
      return call(std::int64_t{});
  }
}

template <class From, class To>
void convert(const From* from, To* to, std::int64_t count) {
  for_blocks(count, [&](std::int64_t, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
      to[i] = static_cast<To>(from[i]);  // NOLINT(bugprone-signed-char-misuse): numbers of a byte, with a sign
  });
}

template <class Wide>
struct Narrow {
  static std::span<const Wide> numbers(std::span<const std::byte> contents) {
    return {reinterpret_cast<const Wide*>(contents.data()), contents.size() / sizeof(Wide)};
  }
  static Bytes bytes(std::span<const std::byte> contents) {
    const auto all = numbers(contents);
    return Bytes{kWidthBytes} + std::ssize(all) * bytes_needed(all);
  }
  static bool encode(std::span<const std::byte> contents, std::span<std::byte> to) {
    const auto all = numbers(contents);
    const std::int64_t width = bytes_needed(all);
    if (kWidthBytes + all.size() * static_cast<std::size_t>(width) > to.size()) return false;
    std::memcpy(to.data(), &width, sizeof(width));
    with_width(width, [&](auto number) {
      convert(all.data(), reinterpret_cast<decltype(number)*>(to.data() + kWidthBytes), std::ssize(all));
    });
    return true;
  }
  static void decode(std::span<const std::byte> from, std::span<std::byte> contents) {
    std::int64_t width = 0;
    std::memcpy(&width, from.data(), sizeof(width));
    with_width(width, [&](auto number) {
      convert(reinterpret_cast<const decltype(number)*>(from.data() + kWidthBytes),
              reinterpret_cast<Wide*>(contents.data()), static_cast<std::int64_t>(contents.size() / sizeof(Wide)));
    });
  }
};

template <class Call>
auto with_integer_of(std::size_t element, const Call& call) {
  return element == sizeof(std::int32_t) ? call(std::int32_t{}) : call(std::int64_t{});
}

bool suits(Codec codec, std::size_t element, std::size_t bytes) {
  switch (codec) {
    case Codec::Zeros:
      return (element == 2 || element == 4 || element == 8) && bytes % element == 0;
    case Codec::Bits:
      return element == 1;
    case Codec::Narrow:
      return (element == 4 || element == 8) && bytes % element == 0;
    case Codec::Exponents:
    case Codec::Float8:
    case Codec::Int8:
    case Codec::Int4:
      return (element == 2 || element == 4) && bytes % element == 0;
    case Codec::BFloat16:
      return element == 4 && bytes % element == 0;
  }
  return false;
}

}  // namespace

std::optional<Bytes> code_bytes(Codec codec, std::size_t element, Bytes bytes) {
  if (bytes == 0 || !suits(codec, element, static_cast<std::size_t>(bytes))) return std::nullopt;
  switch (codec) {
    case Codec::Bits:
      return static_cast<Bytes>(bytes_of_bits(bytes));
    case Codec::BFloat16:
    case Codec::Float8:
    case Codec::Int8:
    case Codec::Int4:
      return rounded_code_bytes(codec, bytes / static_cast<Bytes>(element));
    case Codec::Zeros:
    case Codec::Narrow:
    case Codec::Exponents:
      break;
  }
  return std::nullopt;
}

Bytes encoded_bytes(Codec codec, std::size_t element, std::span<const std::byte> contents) {
  const Bytes all = std::ssize(contents);
  if (all == 0 || !suits(codec, element, contents.size())) return all;
  switch (codec) {
    case Codec::Zeros:
      return with_number_of(element, [&](auto number) { return Zeros<decltype(number)>::bytes(contents); });
    case Codec::Bits:
      return are_bits(contents) ? static_cast<Bytes>(bytes_of_bits(all)) : all;
    case Codec::Narrow:
      return with_integer_of(element, [&](auto number) { return Narrow<decltype(number)>::bytes(contents); });
    case Codec::Exponents:
      return exponents_bytes(element, contents);
    case Codec::BFloat16:
    case Codec::Float8:
    case Codec::Int8:
    case Codec::Int4:
      return rounded_bytes(codec, element, contents);
  }
  return all;
}

bool encode(Codec codec, std::size_t element, std::span<const std::byte> contents, std::span<std::byte> to) {
  if (contents.empty() || !suits(codec, element, contents.size())) return false;
  switch (codec) {
    case Codec::Zeros:
      return with_number_of(element, [&](auto number) { return Zeros<decltype(number)>::encode(contents, to); });
    case Codec::Bits:
      if (bytes_of_bits(std::ssize(contents)) > to.size() || !are_bits(contents)) return false;
      encode_bits(contents, to);
      return true;
    case Codec::Narrow:
      return with_integer_of(element, [&](auto number) { return Narrow<decltype(number)>::encode(contents, to); });
    case Codec::Exponents:
      return encode_exponents(element, contents, to);
    case Codec::BFloat16:
    case Codec::Float8:
    case Codec::Int8:
    case Codec::Int4:
      return encode_rounded(codec, element, contents, to);
  }
  return false;
}

void decode(Codec codec, std::size_t element, std::span<const std::byte> from, std::span<std::byte> contents) {
  switch (codec) {
    case Codec::Zeros:
      return with_number_of(element, [&](auto number) { Zeros<decltype(number)>::decode(from, contents); });
    case Codec::Bits:
      return decode_bits(from, contents);
    case Codec::Narrow:
      return with_integer_of(element, [&](auto number) { Narrow<decltype(number)>::decode(from, contents); });
    case Codec::Exponents:
      return decode_exponents(element, from, contents);
    case Codec::BFloat16:
    case Codec::Float8:
    case Codec::Int8:
    case Codec::Int4:
      return decode_rounded(codec, element, from, contents);
  }
}

}  // namespace snug::memory
