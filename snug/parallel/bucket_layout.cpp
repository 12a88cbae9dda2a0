#include "snug/parallel/bucket_layout.h"

#include <algorithm>

namespace snug::parallel {
namespace {

std::int64_t in_units(std::int64_t elements) { return (elements + kShardUnit - 1) / kShardUnit * kShardUnit; }

}  // namespace

EvenShards::EvenShards(std::int64_t of, int among)
    : elements(of), part(in_units((of + among - 1) / among)), processes(among) {}

std::int64_t EvenShards::first(int rank) const { return std::min(elements, rank * part); }
std::int64_t EvenShards::count(int rank) const { return std::min(elements, (rank + 1) * part) - first(rank); }

BucketLayout::BucketLayout(const std::vector<std::int64_t>& elements, const Bucket& bucket, int processes,
                           Divided divided)
    : processes_(processes) {
  const auto rounded = [&](std::int64_t count) { return divided == Divided::Not ? count : in_units(count); };
  std::int64_t end = 0;  // of the flat tensor, or of each part
  for (const std::size_t i : bucket) {
    if (divided != Divided::Each) {
      pieces_.push_back({i, 0, elements[i], end});
      end += rounded(elements[i]);
      continue;
    }
    const EvenShards shards(elements[i], processes);
    for (int rank = 0; rank < processes; ++rank) {
      // At first in its part; where that begins is known at the end.
      if (shards.count(rank) > 0) pieces_.push_back({i, shards.first(rank), shards.count(rank), end});
    }
    end += shards.part;
  }
  part_ = divided == Divided::Each ? end : rounded((end + processes - 1) / processes);
  if (divided != Divided::Each) return;
  for (Piece& piece : pieces_) {
    const EvenShards shards(elements[piece.parameter], processes);
    piece.at += piece.first / shards.part * part_;
  }
  std::ranges::sort(pieces_, {}, &Piece::at);
}

std::vector<Piece> BucketLayout::pieces_of(int rank, const Strip& strip) const {
  const std::int64_t begin = rank * part_ + strip.first, end = begin + strip.count;
  std::vector<Piece> mine;
  for (const Piece& piece : pieces_) {
    const std::int64_t from = std::max(begin, piece.at), to = std::min(end, piece.at + piece.count);
    if (from < to) mine.push_back({piece.parameter, piece.first + from - piece.at, to - from, from - begin});
  }
  return mine;
}

std::vector<Strip> BucketLayout::strips(std::int64_t about) const {
  const std::int64_t count = std::max<std::int64_t>(size() / std::max<std::int64_t>(about, 1), 1);
  const std::int64_t each = in_units((part_ + count - 1) / count);
  std::vector<Strip> all;
  std::int64_t first = 0;
  do {  // one where there is nothing, too
    all.push_back({first, std::min(each, part_ - first)});
    first += each;
  } while (first < part_);
  return all;
}

std::int64_t BucketLayout::offset(std::size_t parameter) const {
  return std::ranges::find(pieces_, parameter, &Piece::parameter)->at;
}

at::Tensor flat(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

}  // namespace snug::parallel
