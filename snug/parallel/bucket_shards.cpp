#include "snug/parallel/bucket_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "snug/memory/tag.h"

namespace snug::parallel {
namespace {

/// The rows one after the other, behind what there is.
void add_rows(at::Tensor& gradient, const at::Tensor& rows) {
  if (rows.scalar_type() != gradient.scalar_type()) {  // added up in another type, and rounded once
    at::Tensor sum = rows[0].clone();
    for (std::int64_t i = 1; i < rows.size(0); ++i) sum.add_(rows[i]);
    gradient.add_(sum);
    return;
  }
  for (std::int64_t i = 0; i < rows.size(0); ++i) gradient.add_(rows[i]);
}

at::Tensor sum_of(const at::Tensor& rows, at::ScalarType type) {
  at::Tensor sum = rows.size(0) == 1 ? rows[0].clone() : at::add(rows[0], rows[1]);
  for (std::int64_t i = 2; i < rows.size(0); ++i) sum.add_(rows[i]);
  return sum.to(type);
}

}  // namespace

BucketShards::BucketShards(ProcessGroup& group, const BucketOf& bucket, const std::vector<Owned>& owned,
                           const DataParallelOptions& options, Reduction::Purpose purpose)
    : owned_(&owned), handed_in_(packed_gradients(bucket, options, group.size(), Copied::Gone)) {
  const at::NoGradGuard no_grad;
  const memory::TagScope tag(memory::Tag::Gradients);
  if (options.reduce_in) handed_in_ = handed_in_.to(*options.reduce_in);
  const auto begin = [&](const Collective& what) {
    if (purpose == Reduction::Purpose::Sums) begun_ = group.begin(what);
  };
  if (options.order == Order::ByRank && group.size() > 1) {
    received_ = at::empty_like(handed_in_).view({group.size(), bucket.layout.part()});
    begin(AllToAll{received_, handed_in_});
  } else {
    received_ = at::empty({1, bucket.layout.part()}, handed_in_.options());
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
    const at::Tensor rows = received_.narrow(1, owned.piece.at, owned.piece.count);
    at::Tensor& gradient = at::Tensor(owned.tensor).mutable_grad();
    if (gradient.defined()) {
      add_rows(gradient, rows);
    } else {
      gradient = sum_of(rows, owned.tensor.scalar_type());
    }
  }
  received_ = at::Tensor();
}

BucketWeights::BucketWeights(ProcessGroup& group, const BucketOf& bucket, const std::vector<Owned>& owned,
                             Reduction::Purpose purpose)
    : bucket_(bucket), purpose_(purpose) {
  const at::NoGradGuard no_grad;
  const memory::TagScope tag(memory::Tag::Workspace);
  const std::int64_t part = bucket.layout.part();
  all_ = at::empty({bucket.layout.size()}, bucket.parameters[bucket.members.front()].options().requires_grad(false));
  const at::Tensor mine = all_.narrow(0, group.rank() * part, part);
  std::int64_t end = 0;
  for (const Owned& one : owned) {
    mine.narrow(0, end, one.piece.at - end).zero_();
    end = one.piece.at + one.piece.count;
    mine.narrow(0, one.piece.at, one.piece.count).copy_(one.tensor);
  }
  mine.narrow(0, end, part - end).zero_();
  if (purpose == Reduction::Purpose::Sums) begun_ = group.begin(AllGather{all_, mine});
}

void BucketWeights::finish() {
  const at::NoGradGuard no_grad;
  begun_.wait();
  if (purpose_ == Reduction::Purpose::Sums) {
    for (const Piece& piece : bucket_.layout.pieces()) {
      flat(bucket_.parameters[piece.parameter])
          .narrow(0, piece.first, piece.count)
          .copy_(all_.narrow(0, piece.at, piece.count));
    }
  }
  all_ = at::Tensor();
}

}  // namespace snug::parallel
