#include "snug/data/text_dataset.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/data/permutation.h"

namespace snug::data {
namespace {

constexpr std::string_view kName = "text dataset";

std::int64_t windows_in(std::int64_t tokens, std::int64_t sequence) { return tokens > 0 ? (tokens - 1) / sequence : 0; }

}  // namespace

TextDataset::TextDataset(TokenCorpus corpus, const TextDatasetOptions& options)
    : corpus_(std::move(corpus)), options_(options) {
  if (options.batch < 1 || options.sequence < 1) {
    throw UsageError(fmt::format("text dataset: batch = {} and sequence = {} must both be at least 1", options.batch,
                                 options.sequence));
  }
  if (!(options.validation_fraction >= 0 && options.validation_fraction < 1)) {
    throw UsageError(fmt::format("text dataset: validation_fraction = {} must be at least 0 and less than 1",
                                 options.validation_fraction));
  }
  const std::int64_t size = corpus_.size();
  const auto validation =
      static_cast<std::int64_t>(std::floor(static_cast<double>(size) * options.validation_fraction));
  validation_start_ = size - validation;
  train_windows_ = windows_in(validation_start_, options.sequence);
  validation_windows_ = windows_in(validation, options.sequence);
  if (train_windows_ == 0) {
    throw UsageError(fmt::format(
        "text dataset: {0} of the text's {1} {4} are for training, but sequence = {2} needs {3} {4}; use a "
        "longer text, a shorter sequence or a smaller validation_fraction",
        validation_start_, size, options.sequence, static_cast<std::uint64_t>(options.sequence) + 1, corpus_.unit()));
  }
}

Batch TextDataset::train_batch(std::int64_t step) const {
  const std::int64_t first = first_sample(step, options_.batch, kName);
  return gather(
      [&](std::int64_t row) { return shuffled(first + row, train_windows_, options_.seed) * options_.sequence; });
}

Batch TextDataset::validation_batch(std::int64_t index) const {
  if (validation_windows_ == 0) {
    throw Error(
        fmt::format("text dataset: there is no validation window of {0} {2} in the last {1} {2} of the text; "
                    "use a larger validation_fraction or do not validate",
                    options_.sequence + 1, corpus_.size() - validation_start_, corpus_.unit()));
  }
  const std::int64_t first = first_sample(index, options_.batch, kName);
  return gather(
      [&](std::int64_t row) { return validation_start_ + (first + row) % validation_windows_ * options_.sequence; });
}

template <class WindowStart>
Batch TextDataset::gather(const WindowStart& window_start) const {
  const std::int64_t sequence = options_.sequence;
  Batch batch{at::empty({options_.batch, sequence}, at::kLong), at::empty({options_.batch, sequence}, at::kLong)};
  auto* input = batch.input.mutable_data_ptr<std::int64_t>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  std::vector<std::int64_t> window(static_cast<std::size_t>(sequence) + 1);
  for (std::int64_t row = 0; row < options_.batch; ++row) {
    corpus_.copy(window_start(row), window);
    input = std::copy(window.begin(), window.end() - 1, input);
    target = std::copy(window.begin() + 1, window.end(), target);
  }
  return batch;
}

}  // namespace snug::data
