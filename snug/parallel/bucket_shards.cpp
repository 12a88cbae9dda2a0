#include "snug/parallel/bucket_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "snug/memory/tag.h"

namespace snug::parallel {
namespace {

/// `rows` one after the other, behind what there is.
void add_rows(const at::Tensor& gradient, const at::Tensor& rows) {
  if (rows.scalar_type() != gradient.scalar_type()) {  // added up in another type, and rounded once
    at::Tensor sum = rows[0].clone();
    for (std::int64_t i = 1; i < rows.size(0); ++i) sum.add_(rows[i]);
    gradient.add_(sum);
    return;
  }
  for (std::int64_t i = 0; i < rows.size(0); ++i) gradient.add_(rows[i]);
}

/// The same in place of what there is.
void put_sum(at::Tensor gradient, const at::Tensor& rows) {
  const bool in_place = rows.scalar_type() == gradient.scalar_type();
  at::Tensor sum = in_place ? gradient : at::empty_like(rows[0]);
  if (rows.size(0) == 1) {
    sum.copy_(rows[0]);
  } else {
    at::add_out(sum, rows[0], rows[1]);
  }
  for (std::int64_t i = 2; i < rows.size(0); ++i) sum.add_(rows[i]);
  if (!in_place) gradient.copy_(sum);
}

/// What lies in a strip of a part.
struct Within {
  std::int64_t in_piece, in_strip, count;
};
Within within(const Piece& piece, const Strip& strip) {
  const std::int64_t from = std::max(piece.at, strip.first);
  const std::int64_t to = std::min(piece.at + piece.count, strip.first + strip.count);
  return {from - piece.at, from - strip.first, std::max<std::int64_t>(to - from, 0)};
}

std::vector<std::vector<Piece>> pieces_by_rank(const BucketLayout& layout, const Strip& strip, int processes) {
  std::vector<std::vector<Piece>> pieces;
  for (int rank = 0; rank < processes; ++rank) pieces.push_back(layout.pieces_of(rank, strip));
  return pieces;
}

/// The elements of a strip of all parts, one row for each process.
at::Tensor packed(const BucketOf& bucket, const Strip& strip, const DataParallelOptions& options, int processes) {
  const auto& [parameters, members, layout] = bucket;
  const std::int64_t end = strip.first + strip.count;
  std::set<std::size_t> later;  // have elements behind the strip
  for (const auto& pieces : pieces_by_rank(layout, {end, layout.part() - end}, processes)) {
    for (const Piece& piece : pieces) later.insert(piece.parameter);
  }
  const std::vector<std::vector<Piece>> pieces = pieces_by_rank(layout, strip, processes);
  at::Tensor all = at::empty({processes, strip.count}, parameters[members.front()].options().requires_grad(false));
  for (int rank = 0; rank < processes; ++rank) clear_between(all[rank], pieces[static_cast<std::size_t>(rank)]);
  for (const std::size_t i : members) {
    at::Tensor& gradient = at::Tensor(parameters[i]).mutable_grad();
    const bool is_dense = gradient.defined() && gradient.layout() == at::kStrided;  // else put() says what is wrong
    const at::Tensor elements = is_dense ? gradient.contiguous().view(-1) : gradient;
    for (int rank = 0; rank < processes; ++rank) {
      for (const Piece& piece : pieces[static_cast<std::size_t>(rank)]) {
        if (piece.parameter != i) continue;
        put(all[rank].narrow(0, piece.at, piece.count),
            is_dense ? elements.narrow(0, piece.first, piece.count) : elements);
      }
    }
    if (!later.contains(i)) gradient = at::Tensor();
  }
  share(all, options, processes);
  return all;
}

}  // namespace

BucketShards::BucketShards(ProcessGroup& group, const BucketOf& bucket, const Strip& strip,
                           const std::vector<Owned>& owned, const DataParallelOptions& options,
                           Reduction::Purpose purpose)
    : owned_(&owned), options_(&options), strip_(strip), is_last_(strip.first + strip.count == bucket.layout.part()) {
  const at::NoGradGuard no_grad;
  const memory::TagScope tag(memory::Tag::Gradients);
  handed_in_ = packed(bucket, strip, options, group.size());
  if (options.reduce_in) handed_in_ = handed_in_.to(*options.reduce_in);
  const auto begin = [&](const Collective& what) {
    if (purpose == Reduction::Purpose::Sums) begun_ = group.begin(what);
  };
  if (options.order == Order::ByRank && group.size() > 1) {
    received_ = at::empty_like(handed_in_);
    begin(AllToAll{received_, handed_in_});
  } else {
    received_ = at::empty({1, strip.count}, handed_in_.options());
    begin(ReduceScatter{received_, handed_in_});
  }
}

void BucketShards::advance() {
  if (!received_.defined()) return;
  const at::NoGradGuard no_grad;
  const memory::TagScope tag(memory::Tag::Gradients);
  begun_.wait();
  handed_in_ = at::Tensor();
  for (const Owned& owned : *owned_) {
    const auto [in_piece, in_strip, count] = within(owned.piece, strip_);
    if (count == 0) continue;
    const at::Tensor rows = received_.narrow(1, in_strip, count);
    at::Tensor& gradient = at::Tensor(owned.tensor).mutable_grad();
    if (!gradient.defined()) gradient = at::empty_like(owned.tensor, owned.tensor.options().requires_grad(false));
    owned.had_gradient ? add_rows(gradient.narrow(0, in_piece, count), rows)
                       : put_sum(gradient.narrow(0, in_piece, count), rows);
  }
  received_ = at::Tensor();
  if (!is_last_ || !options_->arrived) return;
  for (const Owned& owned : *owned_) options_->arrived(owned.tensor);
}

BucketWeights::BucketWeights(ProcessGroup& group, const BucketOf& bucket, const Strip& strip,
                             const std::vector<Owned>& owned, Reduction::Purpose purpose)
    : bucket_(bucket), strip_(strip), purpose_(purpose) {
  const at::NoGradGuard no_grad;
  const memory::TagScope tag(memory::Tag::Workspace);
  const at::TensorOptions options = bucket.parameters[bucket.members.front()].options().requires_grad(false);
  all_ = at::empty({group.size(), strip.count}, options);
  const at::Tensor mine = all_[group.rank()];
  clear_between(mine, bucket.layout.pieces_of(group.rank(), strip));
  for (const Owned& one : owned) {
    const auto [in_piece, in_strip, count] = within(one.piece, strip);
    if (count > 0) mine.narrow(0, in_strip, count).copy_(one.tensor.narrow(0, in_piece, count));
  }
  if (purpose == Reduction::Purpose::Sums) begun_ = group.begin(AllGather{all_, mine});
}

void BucketWeights::finish() {
  const at::NoGradGuard no_grad;
  begun_.wait();
  if (purpose_ == Reduction::Purpose::Sums) {
    for (std::int64_t rank = 0; rank < all_.size(0); ++rank) {
      for (const Piece& piece : bucket_.layout.pieces_of(static_cast<int>(rank), strip_)) {
        flat(bucket_.parameters[piece.parameter])
            .narrow(0, piece.first, piece.count)
            .copy_(all_[rank].narrow(0, piece.at, piece.count));
      }
    }
  }
  all_ = at::Tensor();
}

}  // namespace snug::parallel
