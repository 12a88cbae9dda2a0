#include "snug/data/permutation.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "snug/base/errors.h"

namespace snug::data {

// Odd multipliers and shifts make it a bijection.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
  x = (x ^ (x >> 29)) * 0xa0761d6478bd642fULL;
  return x ^ (x >> 32);
}

// A Feistel network permutes the next power of four, and what falls outside walks on along its cycle until it is
// inside.
std::int64_t permuted(std::int64_t position, std::int64_t count, std::uint64_t key) {
  constexpr int kRounds = 6;
  // Halves of under 3 bits would leave a network too few permutations to choose from.
  const int half_bits = std::max(3, (static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count - 1))) + 1) / 2);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  auto value = static_cast<std::uint64_t>(position);
  do {
    std::uint64_t left = value >> half_bits;
    std::uint64_t right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      const std::uint64_t scrambled = mix(mix(key + static_cast<std::uint64_t>(round)) ^ right) & mask;
      left = std::exchange(right, left ^ scrambled);
    }
    value = left << half_bits | right;
  } while (value >= static_cast<std::uint64_t>(count));
  return static_cast<std::int64_t>(value);
}

std::int64_t shuffled(std::int64_t sample, std::int64_t count, std::uint64_t seed) {
  const auto epoch = static_cast<std::uint64_t>(sample / count);
  return permuted(sample % count, count, mix(mix(seed) + epoch));
}

std::int64_t first_sample(std::int64_t number, std::int64_t batch, std::string_view who) {
  const std::int64_t limit = std::numeric_limits<std::int64_t>::max() / batch - 1;
  if (number < 0 || number > limit) {
    throw Error(fmt::format("{}: batch number {} must be between 0 and {}", who, number, limit));
  }
  return number * batch;
}

}  // namespace snug::data
