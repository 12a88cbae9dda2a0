#include "snug/data/text_dataset.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "snug/base/errors.h"

namespace snug::data {
namespace {

/// Spreads every input bit over the whole output; odd multipliers and shifts make it a bijection on 64 bits.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ULL;
  x = (x ^ (x >> 29)) * 0xa0761d6478bd642fULL;
  return x ^ (x >> 32);
}

/// Where `position` goes in a pseudo-random permutation of [0, count) chosen by `key`, without a table: a Feistel
/// network permutes the next power of four, and what falls outside walks on along its cycle until it is inside.
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

std::int64_t windows_in(Bytes bytes, std::int64_t sequence) { return bytes > 0 ? (bytes - 1) / sequence : 0; }

}  // namespace

TextDataset::TextDataset(TextCorpus corpus, const TextDatasetOptions& options)
    : corpus_(std::move(corpus)), options_(options) {
  if (options.batch < 1 || options.sequence < 1) {
    throw UsageError(fmt::format("text dataset: batch = {} and sequence = {} must both be at least 1", options.batch,
                                 options.sequence));
  }
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    throw UsageError(fmt::format("text dataset: validation_fraction = {} must be at least 0 and less than 1",
                                 options.validation_fraction));
  }
  const Bytes size = corpus_.size();
  const auto validation = static_cast<Bytes>(std::floor(static_cast<double>(size) * options.validation_fraction));
  validation_start_ = size - validation;
  train_windows_ = windows_in(validation_start_, options.sequence);
  validation_windows_ = windows_in(validation, options.sequence);
  if (train_windows_ == 0) {
    throw UsageError(
        fmt::format("text dataset: {} of the text's {} bytes are for training, but sequence = {} needs {} bytes; use a "
                    "longer text, "
                    "a shorter sequence or a smaller validation_fraction",
                    validation_start_, size, options.sequence, static_cast<std::uint64_t>(options.sequence) + 1));
  }
}

Batch TextDataset::train_batch(std::int64_t step) const {
  const std::int64_t first = first_row(step);
  return gather([&](std::int64_t row) -> Bytes {
    const std::int64_t sample = first + row;
    const auto epoch = static_cast<std::uint64_t>(sample / train_windows_);
    const std::uint64_t key = mix(mix(options_.seed) + epoch);
    return permuted(sample % train_windows_, train_windows_, key) * options_.sequence;
  });
}

Batch TextDataset::validation_batch(std::int64_t index) const {
  if (validation_windows_ == 0) {
    throw Error(
        fmt::format("text dataset: there is no validation window of {} bytes in the last {} bytes of the text; "
                    "use a larger validation_fraction or do not validate",
                    options_.sequence + 1, corpus_.size() - validation_start_));
  }
  const std::int64_t first = first_row(index);
  return gather([&](std::int64_t row) -> Bytes {
    return validation_start_ + (first + row) % validation_windows_ * options_.sequence;
  });
}

std::int64_t TextDataset::first_row(std::int64_t batch_index) const {
  const std::int64_t limit = std::numeric_limits<std::int64_t>::max() / options_.batch - 1;
  if (batch_index < 0 || batch_index > limit) {
    throw Error(fmt::format("text dataset: batch number {} must be between 0 and {}", batch_index, limit));
  }
  return batch_index * options_.batch;
}

template <class WindowStart>
Batch TextDataset::gather(const WindowStart& window_start) const {
  const std::int64_t sequence = options_.sequence;
  Batch batch{at::empty({options_.batch, sequence}, at::kLong), at::empty({options_.batch, sequence}, at::kLong)};
  auto* input = batch.input.mutable_data_ptr<std::int64_t>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  std::vector<std::uint8_t> window(static_cast<std::size_t>(sequence) + 1);
  for (std::int64_t row = 0; row < options_.batch; ++row) {
    corpus_.copy(window_start(row), window);
    input = std::copy(window.begin(), window.end() - 1, input);
    target = std::copy(window.begin() + 1, window.end(), target);
  }
  return batch;
}

}  // namespace snug::data
