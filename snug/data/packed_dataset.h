#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "snug/data/batch.h"
#include "snug/data/token_corpus.h"

namespace snug::data {

struct PackedDatasetOptions {
  std::int64_t batch = 8;
  std::int64_t sequence = 256;
  std::int64_t padding = 0;  ///< id of the input where there is no token
  std::uint64_t seed = 0;
};

/// Documents packed into rows of a fixed length without being cut, but for those longer than a row, which are cut into
/// rows and a rest. Packing is best-fit decreasing: the longest first, each into the row that it leaves the least room
/// in. Every token is in one row, and all but each document's first are a target there; but a document, or rest of one,
/// of a single token is left out, as it has nothing to predict. It holds no position: batches are pure functions, safe
/// to call from any thread. Memory: 24 bytes for each document or piece, and less for each row; three times that while
/// it is made.
class PackedDataset {
 public:
  /// Throws UsageError when an option is out of range, or no document has two tokens.
  PackedDataset(TokenCorpus corpus, const PackedDatasetOptions& options);

  /// The batch of training step `step`, from 0 on, with positions and documents: a row holds whole documents, or pieces
  /// of long ones, one after the other, and then padding. It depends on the seed and the step alone: to resume, go on
  /// counting. An epoch takes every row once in an order of its own; a batch may end one epoch and begin the next.
  /// Throws Error when `step` is negative.
  [[nodiscard]] Batch train_batch(std::int64_t step) const;

  /// Rows of an epoch.
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(row_ends_.size()); }
  /// Which part of an epoch's positions holds tokens; the rest is padding.
  [[nodiscard]] double fill_rate() const;

 private:
  struct Piece {
    std::int64_t begin, end;  // tokens
    std::int64_t document;
  };
  [[nodiscard]] std::vector<Piece> cut() const;

  TokenCorpus corpus_;
  PackedDatasetOptions options_;
  std::vector<Piece> pieces_;          // row by row
  std::vector<std::size_t> row_ends_;  // behind the last piece of each
};

/// Which tokens see each other: those of the same document, not later than themselves; bool, of shape (batch, 1,
/// sequence, sequence), for the attn_mask of scaled_dot_product_attention. Padding sees padding, so that no row of the
/// mask is empty, which would make NaN. `documents`: of a Batch, on any device. Throws UsageError when it is not
/// two-dimensional.
at::Tensor document_mask(const at::Tensor& documents);

}  // namespace snug::data
