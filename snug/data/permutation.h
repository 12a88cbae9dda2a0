#pragma once

#include <cstdint>
#include <string_view>

namespace snug::data {

/// Spreads every input bit over the whole output; a bijection on 64 bits.
std::uint64_t mix(std::uint64_t x);

/// Where `position` goes in a pseudo-random permutation of [0, count) chosen by `key`, without a table.
std::int64_t permuted(std::int64_t position, std::int64_t count, std::uint64_t key);

/// What an endless training takes as its sample number `sample` from `count` things: each of them once an epoch, in an
/// order of the epoch's own, which depends on the seed alone.
std::int64_t shuffled(std::int64_t sample, std::int64_t count, std::uint64_t seed);

/// The number of the first sample of batch `number`, from 0 on. Throws Error, beginning with `who`, when it is negative
/// or too large for its samples to be counted.
std::int64_t first_sample(std::int64_t number, std::int64_t batch, std::string_view who);

}  // namespace snug::data
