#include "snug/data/packed_dataset.h"

#include <ATen/ops/eq.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tril.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "snug/base/errors.h"
#include "snug/data/permutation.h"

namespace snug::data {

PackedDataset::PackedDataset(TokenCorpus corpus, const PackedDatasetOptions& options)
    : corpus_(std::move(corpus)), options_(options) {
  if (options.batch < 1 || options.sequence < 1) {
    throw UsageError(fmt::format("packed dataset: batch = {} and sequence = {} must both be at least 1", options.batch,
                                 options.sequence));
  }
  std::vector<Piece> pieces = cut();
  if (pieces.empty()) throw UsageError("packed dataset: no document has two tokens, and one alone teaches nothing");
  const auto length = [](const Piece& p) { return p.end - p.begin; };
  std::ranges::stable_sort(pieces, std::ranges::greater{}, length);
  // Rows that have room, by how much; the one opened last is taken first.
  std::map<std::int64_t, std::vector<std::size_t>> open;
  std::vector<std::size_t> row_of, counts;
  row_of.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    std::size_t row = counts.size();
    std::int64_t room = options.sequence;
    if (const auto best = open.lower_bound(length(piece)); best != open.end()) {
      room = best->first;
      row = best->second.back();
      best->second.pop_back();
      if (best->second.empty()) open.erase(best);
    } else {
      counts.push_back(0);
    }
    row_of.push_back(row);
    ++counts[row];
    room -= length(piece);
    if (room > 0) open[room].push_back(row);
  }
  row_ends_.resize(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), row_ends_.begin(), std::size_t{0});
  pieces_.resize(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces_[row_ends_[row_of[i]]++] = pieces[i];
}

std::vector<PackedDataset::Piece> PackedDataset::cut() const {
  std::vector<Piece> pieces;
  const std::span<const std::int64_t> documents = corpus_.documents();
  for (std::size_t i = 0; i < documents.size(); ++i) {
    const std::int64_t end = i + 1 < documents.size() ? documents[i + 1] : corpus_.size();
    for (std::int64_t begin = documents[i]; begin < end;) {
      const std::int64_t reached = begin + std::min(end - begin, options_.sequence);
      // Alone in a row it would have no target, and a batch of such rows no loss.
      const bool has_target = reached - begin > 1 || reached < end;
      if (has_target) pieces.push_back({begin, reached, static_cast<std::int64_t>(i)});
      begin = reached;
    }
  }
  return pieces;
}

Batch PackedDataset::train_batch(std::int64_t step) const {
  const std::int64_t first = first_sample(step, options_.batch, "packed dataset");
  const std::int64_t sequence = options_.sequence;
  const std::vector<std::int64_t> shape{options_.batch, sequence};
  Batch batch{at::full(shape, options_.padding, at::kLong), at::full(shape, kNoTarget, at::kLong),
              at::zeros(shape, at::kLong), at::full(shape, kNoDocument, at::kLong)};
  const auto documents = corpus_.documents();
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < options_.batch; ++i) {
    const auto row = static_cast<std::size_t>(shuffled(first + i, rows(), options_.seed));
    std::int64_t place = i * sequence;
    for (std::size_t p = row == 0 ? 0 : row_ends_[row - 1]; p < row_ends_[row]; ++p) {
      const Piece& piece = pieces_[p];
      const std::int64_t count = piece.end - piece.begin;
      const auto next = static_cast<std::size_t>(piece.document) + 1;
      const std::int64_t document_end = next < documents.size() ? documents[next] : corpus_.size();
      // The token behind a piece is the target of its last one, where the document goes on.
      ids.resize(static_cast<std::size_t>(std::min(count + 1, document_end - piece.begin)));
      corpus_.copy(piece.begin, ids);
      std::copy_n(ids.begin(), count, batch.input.mutable_data_ptr<std::int64_t>() + place);
      std::copy(ids.begin() + 1, ids.end(), batch.target.mutable_data_ptr<std::int64_t>() + place);
      auto* const positions = batch.positions.mutable_data_ptr<std::int64_t>() + place;
      std::iota(positions, positions + count, std::int64_t{0});
      std::fill_n(batch.documents.mutable_data_ptr<std::int64_t>() + place, count, piece.document);
      place += count;
    }
  }
  return batch;
}

double PackedDataset::fill_rate() const {
  std::int64_t tokens = 0;
  for (const Piece& piece : pieces_) tokens += piece.end - piece.begin;
  return static_cast<double>(tokens) / static_cast<double>(rows() * options_.sequence);
}

at::Tensor document_mask(const at::Tensor& documents) {
  if (documents.dim() != 2) {
    throw UsageError(
        fmt::format("document mask: documents have {} dimensions and must have two, batch and sequence; give those of "
                    "a batch of a PackedDataset",
                    documents.dim()));
  }
  const std::int64_t sequence = documents.size(1);
  const at::Tensor not_later = at::tril(at::ones({sequence, sequence}, documents.options().dtype(at::kBool)));
  const at::Tensor rows = documents.unsqueeze(1);
  return rows.unsqueeze(-1).eq(rows.unsqueeze(-2)).logical_and_(not_later);
}

}  // namespace snug::data
