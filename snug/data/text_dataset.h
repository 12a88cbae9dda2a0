#pragma once

#include <cstdint>

#include "snug/data/batch.h"
#include "snug/data/token_corpus.h"

namespace snug::data {

struct TextDatasetOptions {
  std::int64_t batch = 8;
  std::int64_t sequence = 256;
  double validation_fraction = 0.05;  ///< In [0, 1).
  std::uint64_t seed = 0;
};

/// Language-model batches of a text's tokens: bytes (0 to 255) of a TextCorpus, or ids. The last validation_fraction of
/// the text is for validation, the rest for training. Each split is cut into windows of sequence + 1 tokens that start
/// `sequence` tokens apart, whatever documents they are in, so every token but the first is a target once; what does
/// not fill the last window is not used.
/// It holds no position: batches are pure functions, safe to call from any thread. Whether the ids are those of a
/// model's vocabulary is for TokenCorpus::check_vocabulary to say.
class TextDataset {
 public:
  /// Throws UsageError when an option is out of range or the training split is shorter than one window.
  TextDataset(TokenCorpus corpus, const TextDatasetOptions& options);

  /// The batch of training step `step`, from 0 on, which depends on the seed and the step alone: to resume, go on
  /// counting. An epoch takes every window once in an order of its own; a batch may end one epoch and begin the next.
  /// Throws Error when `step` is negative.
  [[nodiscard]] Batch train_batch(std::int64_t step) const;

  /// The validation batch `index`, from 0 on: windows in the order of the text, from the first one again after the
  /// last, so that every batch is full. Throws Error when `index` is negative or there are no validation windows.
  [[nodiscard]] Batch validation_batch(std::int64_t index) const;

  [[nodiscard]] std::int64_t train_windows() const { return train_windows_; }
  /// 0 when validation_fraction is 0 or the validation split is shorter than one window.
  [[nodiscard]] std::int64_t validation_windows() const { return validation_windows_; }

 private:
  template <class WindowStart>
  [[nodiscard]] Batch gather(const WindowStart& window_start) const;

  TokenCorpus corpus_;
  TextDatasetOptions options_;
  std::int64_t validation_start_ = 0;
  std::int64_t train_windows_ = 0;
  std::int64_t validation_windows_ = 0;
};

}  // namespace snug::data
