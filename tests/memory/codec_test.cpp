// Codecs give back the same bits, whatever the contents; what does not fit is said.
#include "snug/memory/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <vector>

namespace snug::memory {
namespace {

template <class T>
std::span<const std::byte> bytes_in(const std::vector<T>& numbers) {
  return std::as_bytes(std::span(numbers));
}

/// Encodes into exactly as many bytes as it says, and back. Returns that many; 0 where the bits differ.
template <class T>
Bytes round_trip(Codec codec, const std::vector<T>& numbers) {
  const Bytes bytes = encoded_bytes(codec, sizeof(T), bytes_in(numbers));
  constexpr std::size_t kGuard = 128;  // nothing is written, or read, beyond
  std::vector<std::byte> to(static_cast<std::size_t>(bytes) + kGuard, std::byte{0x5A});
  if (!encode(codec, sizeof(T), bytes_in(numbers), std::span(to).first(static_cast<std::size_t>(bytes)))) return 0;
  for (std::size_t i = static_cast<std::size_t>(bytes); i < to.size(); ++i) {
    if (to[i] != std::byte{0x5A}) return 0;
  }
  to.resize(static_cast<std::size_t>(bytes));
  std::vector<T> back(numbers.size(), T(77));
  decode(codec, sizeof(T), to, std::as_writable_bytes(std::span(back)));
  return std::memcmp(back.data(), numbers.data(), numbers.size() * sizeof(T)) == 0 ? bytes : 0;
}

template <class T>
std::vector<T> with_zeros(std::size_t count, double share, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<T> numbers(count);
  for (T& number : numbers) number = random() % 1000 < share * 1000 ? T(0) : static_cast<T>(1 + random() % 60'000);
  return numbers;
}

template <class T>
void expect_zeros_come_back() {
  std::uint32_t seed = 0;
  for (const std::size_t count : {1, 63, 64, 65, 1000, 32'768, 32'769, 200'001}) {
    for (const double share : {0.0, 0.03, 0.5, 0.97, 1.0}) {
      const std::vector<T> numbers = with_zeros<T>(count, share, ++seed);
      const auto zeros = static_cast<std::size_t>(std::count(numbers.begin(), numbers.end(), T(0)));
      EXPECT_EQ(round_trip(Codec::Zeros, numbers),
                static_cast<Bytes>((count + 32'767) / 32'768 * 8 + (count + 63) / 64 * 8 + (count - zeros) * sizeof(T)))
          << count << " with " << share;
    }
  }
}

TEST(Codec, ZerosComeBackInNumbersOfEachSize) {
  expect_zeros_come_back<std::uint16_t>();
  expect_zeros_come_back<std::uint32_t>();
  expect_zeros_come_back<std::uint64_t>();
}

TEST(Codec, ZerosKeepWhatIsEqualToZeroAndHasOtherBits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> numbers{0.0F, -0.0F, nan, std::numeric_limits<float>::denorm_min(), 0.0F, -nan, 1.5F};
  EXPECT_EQ(round_trip(Codec::Zeros, numbers), 8 + 8 + 5 * 4);
}

TEST(Codec, BitsAreForBytesThatAreZeroOrOne) {
  for (const std::size_t count : {1, 7, 8, 64, 100'003}) {
    std::vector<std::uint8_t> mask = with_zeros<std::uint8_t>(count, 0.3, 9);
    for (auto& m : mask) m = m != 0 ? 1 : 0;
    EXPECT_EQ(round_trip(Codec::Bits, mask), static_cast<Bytes>((count + 63) / 64 * 8));
    mask.back() = 2;
    EXPECT_EQ(encoded_bytes(Codec::Bits, 1, bytes_in(mask)), static_cast<Bytes>(count));
    std::vector<std::byte> to(count);
    EXPECT_FALSE(encode(Codec::Bits, 1, bytes_in(mask), to));
  }
}

TEST(Codec, NarrowTakesTheBytesThatTheLargestNeeds) {
  const auto indices = [](std::int64_t least, std::int64_t most) {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < 40'000; ++i) all.push_back(least + i * ((most - least) / 40'000));
    all.push_back(most);
    return all;
  };
  EXPECT_EQ(round_trip(Codec::Narrow, indices(-128, 127)), 8 + 40'001);
  EXPECT_EQ(round_trip(Codec::Narrow, indices(0, 128)), 8 + 2 * 40'001);
  EXPECT_EQ(round_trip(Codec::Narrow, indices(-32'769, 5)), 8 + 4 * 40'001);
  EXPECT_EQ(round_trip(Codec::Narrow, indices(0, std::int64_t{1} << 31)), 8 + 8 * 40'001);
  EXPECT_EQ(round_trip(Codec::Narrow, std::vector<std::int32_t>{-128, 0, 127}), 8 + 3);
}

template <class T>
std::vector<T> floats(std::size_t count, const std::function<float(std::size_t)>& number) {
  std::vector<T> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = number(i);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    all[i] = static_cast<T>(sizeof(T) == 4 ? bits : bits >> 16U);
  }
  return all;
}

template <class T>
void expect_floats_come_back() {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  const auto share = [](Bytes bytes, std::size_t count) {
    return static_cast<double>(bytes) / static_cast<double>(count * sizeof(T));
  };
  for (const std::size_t count : {1, 2, 511, 513, 4095, 4096, 4097, 200'003}) {
    const auto of_normal = floats<T>(count, [&](std::size_t) { return normal(random); });
    const Bytes bytes = round_trip(Codec::Exponents, of_normal);
    EXPECT_GT(bytes, 0);
    if (count > 4000) {
      EXPECT_LT(share(bytes, count), sizeof(T) == 4 ? 0.879 : 0.757);
    }
    // Of any size, and what is no number.
    const auto any = floats<T>(count, [&](std::size_t i) {
      constexpr std::array kOdd = {0.0F, -0.0F, std::numeric_limits<float>::infinity(), -1e-42F,
                                   std::numeric_limits<float>::quiet_NaN()};
      return i % 3 == 0 ? kOdd[i % kOdd.size()] : std::ldexp(normal(random), static_cast<int>(random() % 250) - 125);
    });
    EXPECT_GT(round_trip(Codec::Exponents, any), 0) << count;
    EXPECT_GT(round_trip(Codec::Exponents, std::vector<T>(count, T{0})), 0) << count;
  }
}

TEST(Codec, ExponentsComeBackOfFp32AndBf16) {
  expect_floats_come_back<std::uint32_t>();
  expect_floats_come_back<std::uint16_t>();
}

TEST(Codec, WhatDoesNotFitOrSuitIsRefused) {
  const std::vector<std::uint32_t> numbers = with_zeros<std::uint32_t>(1000, 0.5, 3);
  const Bytes bytes = encoded_bytes(Codec::Zeros, 4, bytes_in(numbers));
  std::vector<std::byte> to(static_cast<std::size_t>(bytes) - 1);
  EXPECT_FALSE(encode(Codec::Zeros, 4, bytes_in(numbers), to));
  EXPECT_EQ(encoded_bytes(Codec::Zeros, 1, bytes_in(numbers)), 4000);
  EXPECT_EQ(encoded_bytes(Codec::Bits, 4, bytes_in(numbers)), 4000);
  EXPECT_EQ(encoded_bytes(Codec::Narrow, 2, bytes_in(numbers)), 4000);
  EXPECT_FALSE(encode(Codec::Narrow, 8, bytes_in(numbers).first(4), to)) << "no whole number";
  EXPECT_FALSE(encode(Codec::Zeros, 4, {}, to));
}

}  // namespace
}  // namespace snug::memory
