#include "snug/memory/exponents_code.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "snug/memory/exponents_kernel.h"
#include "snug/memory/number_blocks.h"

namespace snug::memory {
namespace {

// Of each block its base and where its list begins; codes; signs and mantissas; lists

template <class Number>
struct Exponents {
  struct Header {
    std::uint32_t base, list;
  };
  static constexpr std::int64_t kNumbers = 4096;  // of a block
  static std::int64_t blocks(std::int64_t numbers) { return (numbers + kNumbers - 1) / kNumbers; }

  /// Where the parts of `count` numbers begin.
  struct Layout {
    explicit Layout(std::int64_t count)
        : codes(static_cast<std::size_t>(blocks(count)) * sizeof(Header)),
          rest(codes + static_cast<std::size_t>(count + 1) / 2),
          lists(rest + static_cast<std::size_t>(count) * (sizeof(Number) - 1)) {}
    std::size_t codes, rest, lists;
  };

  template <class Work>
  static void for_each_block(std::int64_t numbers, const Work& work) {
    constexpr std::int64_t kBlocksOfAThread = kBlock / kNumbers;
    parallel_for(0, blocks(numbers), kBlocksOfAThread, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) work(b, b * kNumbers, std::min(kNumbers, numbers - b * kNumbers));
    });
  }

  static ExponentBlock parts(std::byte* encoded, const Layout& at, std::int64_t first, const Header& header) {
    auto* const bytes = reinterpret_cast<std::uint8_t*>(encoded);
    return {bytes + at.codes + first / 2, bytes + at.rest + static_cast<std::size_t>(first) * (sizeof(Number) - 1),
            bytes + at.lists + header.list};
  }

  static Bytes bytes(std::span<const std::byte> contents) {
    const auto count = static_cast<std::int64_t>(contents.size() / sizeof(Number));
    const auto* const all = reinterpret_cast<const Number*>(contents.data());
    std::atomic<std::int64_t> found{0};
    for_each_block(count, [&](std::int64_t, std::int64_t first, std::int64_t here) {
      found.fetch_add(without_code(all + first, here, exponent_base(all + first, here)), std::memory_order_relaxed);
    });
    return static_cast<Bytes>(Layout(count).lists) + found;
  }

  static bool encode(std::span<const std::byte> contents, std::span<std::byte> to) {
    const auto count = static_cast<std::int64_t>(contents.size() / sizeof(Number));
    const auto* const all = reinterpret_cast<const Number*>(contents.data());
    const Layout at(count);
    if (at.lists > to.size()) return false;
    SharedRoom room(static_cast<std::int64_t>(to.size() - at.lists));
    for_each_block(count, [&](std::int64_t block, std::int64_t first, std::int64_t here) {
      std::array<std::uint8_t, kNumbers> list;
      Header header{.base = static_cast<std::uint32_t>(exponent_base(all + first, here)), .list = 0};
      ExponentBlock parts_here = parts(to.data(), at, first, header);
      parts_here.exponents = list.data();
      const std::int64_t listed = encode_block(all + first, here, static_cast<int>(header.base), parts_here);
      const auto begin = room.take(listed);
      if (!begin) return;
      header.list = static_cast<std::uint32_t>(*begin);
      std::memcpy(to.data() + static_cast<std::size_t>(block) * sizeof(Header), &header, sizeof(Header));
      std::memcpy(to.data() + at.lists + *begin, list.data(), static_cast<std::size_t>(listed));
    });
    return room.was_enough();
  }

  static void decode(std::span<const std::byte> from, std::span<std::byte> contents) {
    const auto count = static_cast<std::int64_t>(contents.size() / sizeof(Number));
    const Layout at(count);
    auto* const encoded = const_cast<std::byte*>(from.data());  // NOLINT: read alone
    for_each_block(count, [&](std::int64_t block, std::int64_t first, std::int64_t here) {
      Header header{};
      std::memcpy(&header, from.data() + static_cast<std::size_t>(block) * sizeof(Header), sizeof(Header));
      decode_block(parts(encoded, at, first, header), static_cast<int>(header.base),
                   reinterpret_cast<Number*>(contents.data()) + first, here);
    });
  }
};

template <class Call>
auto with_float_of(std::size_t element, const Call& call) {
  return element == sizeof(std::uint16_t) ? call(std::uint16_t{}) : call(std::uint32_t{});
}

}  // namespace

Bytes exponents_bytes(std::size_t element, std::span<const std::byte> contents) {
  return with_float_of(element, [&](auto number) { return Exponents<decltype(number)>::bytes(contents); });
}

bool encode_exponents(std::size_t element, std::span<const std::byte> contents, std::span<std::byte> to) {
  return with_float_of(element, [&](auto number) { return Exponents<decltype(number)>::encode(contents, to); });
}

void decode_exponents(std::size_t element, std::span<const std::byte> from, std::span<std::byte> contents) {
  with_float_of(element, [&](auto number) { Exponents<decltype(number)>::decode(from, contents); });
}

}  // namespace snug::memory
