#include "snug/parallel/bucket_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"

namespace snug::parallel {
namespace {

/// The place of a gradient, as the engine lays gradients out: like the parameter, where that is dense.
at::Tensor place_of(const at::Tensor& gradients, const at::Tensor& parameter, std::int64_t offset) {
  if (parameter.is_non_overlapping_and_dense())
    return gradients.as_strided(parameter.sizes(), parameter.strides(), offset);
  return gradients.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

void refuse_sparse(const at::Tensor& gradient) {
  if (gradient.layout() == at::kStrided) return;
  throw UsageError(fmt::format("parallel: the gradient of a parameter of shape {} is sparse; make it dense",
                               c10::str(gradient.sizes())));
}

void put(const at::Tensor& place, const at::Tensor& gradient) {
  if (gradient.defined()) {
    place.copy_(gradient);
  } else {
    place.zero_();
  }
}

void clear_between(const at::Tensor& all, const BucketLayout& layout) {
  std::int64_t end = 0;
  for (const Piece& piece : layout.pieces()) {
    all.narrow(0, end, piece.at - end).zero_();
    end = piece.at + piece.count;
  }
  all.narrow(0, end, layout.size() - end).zero_();
}

}  // namespace

at::Tensor packed_gradients(const BucketOf& bucket, const DataParallelOptions& options, int processes, Copied copied) {
  const at::NoGradGuard no_grad;
  const memory::TagScope tag(memory::Tag::Gradients);
  const auto& [parameters, members, layout] = bucket;
  at::Tensor all = at::empty({layout.size()}, parameters[members.front()].options().requires_grad(false));
  clear_between(all, layout);
  for (const std::size_t i : members) {
    at::Tensor& gradient = at::Tensor(parameters[i]).mutable_grad();
    if (gradient.defined()) refuse_sparse(gradient);
    if (copied == Copied::Views) {
      const at::Tensor place = place_of(all, parameters[i], layout.offset(i));
      put(place, gradient);
      gradient = place;
      continue;
    }
    const at::Tensor elements = gradient.defined() ? gradient.contiguous().view(-1) : at::Tensor();
    for (const Piece& piece : layout.pieces()) {
      if (piece.parameter != i) continue;
      put(all.narrow(0, piece.at, piece.count),
          elements.defined() ? elements.narrow(0, piece.first, piece.count) : elements);
    }
    gradient = at::Tensor();
  }
  if (options.combine == DataParallelOptions::Combine::Mean && processes > 1) all.div_(processes);
  return all;
}

BucketGradients::BucketGradients(ProcessGroup& group, const BucketOf& bucket, const DataParallelOptions& options,
                                 Reduction::Purpose purpose)
    : gradients_(packed_gradients(bucket, options, group.size(), Copied::Views)),
      sums_(options.reduce_in ? gradients_.to(*options.reduce_in) : gradients_),
      reduction_(group, sums_, options.order, purpose) {}

void BucketGradients::finish() {
  reduction_.finish();
  const at::NoGradGuard no_grad;
  if (!sums_.is_same(gradients_)) gradients_.copy_(sums_);
}

}  // namespace snug::parallel
