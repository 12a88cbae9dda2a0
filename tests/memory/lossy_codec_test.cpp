// Lossy codecs give back numbers within the bounds that they state, the same each time, and no others where they
// cannot.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "snug/base/hash.h"
#include "snug/memory/codec.h"
#include "tests/memory/kinds_of_numbers.h"

namespace snug::memory {
namespace {

constexpr std::array kLossy = {Codec::BFloat16, Codec::Float8, Codec::Int8, Codec::Int4};

/// As fp32 or bf16 in memory; bf16 takes the upper halves.
template <class T>
std::vector<T> in_memory(const std::vector<float>& numbers) {
  std::vector<T> all;
  for (const float number : numbers) {
    const auto bits = std::bit_cast<std::uint32_t>(number);
    all.push_back(static_cast<T>(sizeof(T) == 4 ? bits : bits >> 16U));
  }
  return all;
}
template <class T>
double number_in(T bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << (sizeof(T) == 4 ? 0U : 16U));
}

template <class T>
std::vector<T> given_back(Codec codec, const std::vector<T>& numbers) {
  const auto contents = std::as_bytes(std::span(numbers));
  const Bytes bytes = encoded_bytes(codec, sizeof(T), contents);
  constexpr std::size_t kGuard = 128;  // nothing is written beyond
  std::vector<std::byte> to(static_cast<std::size_t>(bytes) + kGuard, std::byte{0x5A});
  EXPECT_TRUE(encode(codec, sizeof(T), contents, std::span(to).first(static_cast<std::size_t>(bytes))));
  for (std::size_t i = static_cast<std::size_t>(bytes); i < to.size(); ++i) EXPECT_EQ(to[i], std::byte{0x5A});
  to.resize(static_cast<std::size_t>(bytes));
  std::vector<T> back(numbers.size());
  decode(codec, sizeof(T), to, std::as_writable_bytes(std::span(back)));
  return back;
}

template <class T>
void expect_within_bounds(Codec codec) {
  std::mt19937 random(6);
  const ErrorBound bound = error_bound(codec);
  for (const std::size_t count : {1, 2, 127, 128, 129, 1000, 32'768, 32'769, 100'003}) {
    for (const auto& kind : kinds_of_numbers(random)) {
      std::vector<float> numbers(count);
      for (std::size_t i = 0; i < count; ++i) numbers[i] = kind(i);
      const auto before = in_memory<T>(numbers);
      const auto after = given_back(codec, before);
      for (std::size_t first = 0; first < count; first += kGroupOfNumbers) {
        double low = std::numeric_limits<double>::infinity(), high = -low;
        const std::size_t last = std::min<std::size_t>(count, first + kGroupOfNumbers);
        for (std::size_t i = first; i < last; ++i) {
          low = std::min(low, number_in(before[i]));
          high = std::max(high, number_in(before[i]));
        }
        const double largest = std::max(std::abs(low), std::abs(high));
        for (std::size_t i = first; i < last; ++i) {
          const double x = number_in(before[i]), y = number_in(after[i]);
          double most = bound.of_number * std::abs(x) + bound.of_range * (high - low) + bound.of_largest * largest +
                        bound.absolute;
          if (sizeof(T) == 2) most += 0x1p-8 * (std::abs(x) + most);
          ASSERT_LE(std::abs(x - y), most) << x << " came back as " << y << ", number " << i << " of " << count;
        }
      }
    }
  }
}

TEST(LossyCodec, GivesBackNumbersWithinItsBounds) {
  for (const Codec codec : kLossy) {
    SCOPED_TRACE(static_cast<int>(codec));
    ASSERT_NO_FATAL_FAILURE(expect_within_bounds<std::uint32_t>(codec));
    if (codec == Codec::BFloat16) continue;
    ASSERT_NO_FATAL_FAILURE(expect_within_bounds<std::uint16_t>(codec));
  }
}

TEST(LossyCodec, TakesTheBytesOfItsBitsAndOfAScaleForEachGroup) {
  const std::vector<std::uint32_t> numbers(12'801);  // 101 groups
  const auto contents = std::as_bytes(std::span(numbers));
  EXPECT_EQ(encoded_bytes(Codec::BFloat16, 4, contents), 2 * 12'801);
  EXPECT_EQ(encoded_bytes(Codec::Float8, 4, contents), 101 * 4 + 12'801);
  EXPECT_EQ(encoded_bytes(Codec::Int8, 4, contents), 101 * 8 + 12'801);
  EXPECT_EQ(encoded_bytes(Codec::Int4, 4, contents), 101 * 8 + 6'401);
  EXPECT_EQ(encoded_bytes(Codec::BFloat16, 2, contents), 4 * 12'801) << "they are bf16";
}

TEST(LossyCodec, RoundsAtRandomSoThatTheExpectationIsTheNumber) {
  // 32 groups of the same numbers, at other places: what is random differs.
  std::mt19937 random(2);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> group(kGroupOfNumbers);
  for (float& number : group) number = uniform(random);
  constexpr std::size_t kTimes = 4000;
  std::vector<float> all;
  for (std::size_t i = 0; i < kTimes; ++i) all.insert(all.end(), group.begin(), group.end());
  const auto after = given_back(Codec::Int4, in_memory<std::uint32_t>(all));
  const auto [low, high] = std::minmax_element(group.begin(), group.end());
  const double step = static_cast<double>(*high - *low) / 15;
  double sum_of_squares = 0;
  for (std::size_t k = 0; k < group.size(); ++k) {
    double sum = 0;
    for (std::size_t i = 0; i < kTimes; ++i) sum += number_in(after[i * group.size() + k]);
    const double mean = sum / kTimes;
    EXPECT_NEAR(mean, group[k], 5 * 0.5 * step / std::sqrt(kTimes)) << "five deviations";
    sum_of_squares += std::pow((mean - group[k]) / step, 2);
  }
  // Not less random than independent numbers, either: of those the mean of p (1 - p) is 1/6.
  const double expected = 1.0 / 6 / kTimes;
  EXPECT_NEAR(sum_of_squares / static_cast<double>(group.size()), expected, 0.6 * expected);
}

TEST(LossyCodec, GivesTheSameBitsEachTimeAndOnEachProcessor) {
  std::mt19937 random(8);
  std::vector<float> numbers(50'001);
  for (float& number : numbers) {  // no library function whose last bit may differ
    const auto r = static_cast<std::uint32_t>(random());
    number = static_cast<float>(static_cast<std::int32_t>(r)) * (r % 7 == 0 ? 0x1p-20F : 0x1p-31F);
  }
  const auto hash_of = [&](Codec codec) {
    const auto in = in_memory<std::uint32_t>(numbers);
    const auto back = given_back(codec, in);
    EXPECT_EQ(back, given_back(codec, in));
    return hash_64(std::as_bytes(std::span(back)));
  };
  EXPECT_EQ(hash_of(Codec::BFloat16), 666485466390146662U);
  EXPECT_EQ(hash_of(Codec::Float8), 16280999984355216608U);
  EXPECT_EQ(hash_of(Codec::Int8), 2974180923757430569U);
  EXPECT_EQ(hash_of(Codec::Int4), 17159450667633540757U);
}

TEST(LossyCodec, Float8HasTheNumbersOfE4M3) {
  // With 448 in its group the scale is 1, and these are numbers of the format.
  std::vector<float> numbers{448, 0, -0.0F, 0x1p-9F, -0x1p-9F, 7 * 0x1p-9F, 0x1p-6F, 1.875F, -240, 416};
  EXPECT_EQ(given_back(Codec::Float8, in_memory<std::uint32_t>(numbers)), in_memory<std::uint32_t>(numbers));
  numbers = {448, 17, 19, 0x1p-10F, 3 * 0x1p-10F, 432};  // halfway: to even
  const std::vector<float> even{448, 16, 20, 0, 2 * 0x1p-9F, 448};
  EXPECT_EQ(given_back(Codec::Float8, in_memory<std::uint32_t>(numbers)), in_memory<std::uint32_t>(even));
}

TEST(LossyCodec, WhatIsNotFiniteIsRefused) {
  for (const Codec codec : kLossy) {
    for (const float odd : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
      for (const std::size_t where : {0, 131, 70'000}) {
        std::vector<float> numbers(70'001, 1.5F);
        numbers[where] = odd;
        const auto in = in_memory<std::uint32_t>(numbers);
        std::vector<std::byte> to(4 * in.size());
        EXPECT_FALSE(encode(codec, 4, std::as_bytes(std::span(in)), to));
        EXPECT_EQ(encoded_bytes(codec, 4, std::as_bytes(std::span(in))), 4 * std::ssize(in));
      }
    }
  }
  // Where the range, or the nearest number, is not.
  const auto in = in_memory<std::uint32_t>({std::numeric_limits<float>::max(), std::numeric_limits<float>::lowest()});
  std::vector<std::byte> to(64);
  EXPECT_FALSE(encode(Codec::Int4, 4, std::as_bytes(std::span(in)), to));
  EXPECT_FALSE(encode(Codec::BFloat16, 4, std::as_bytes(std::span(in)), to));
  EXPECT_TRUE(encode(Codec::Float8, 4, std::as_bytes(std::span(in)), to));
}

}  // namespace
}  // namespace snug::memory
