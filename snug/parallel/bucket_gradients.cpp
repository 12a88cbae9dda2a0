#include "snug/parallel/bucket_gradients.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"

namespace snug::parallel {
namespace {

/// The place of a gradient, as the engine lays gradients out: like the parameter, where that is dense. No view to
/// autograd, which LibTorch's Optimizer::zero_grad() could not detach.
at::Tensor place_of(const at::Tensor& gradients, const at::Tensor& parameter, std::int64_t offset) {
  const at::AutoDispatchBelowADInplaceOrView no_view;
  if (parameter.is_non_overlapping_and_dense())
    return gradients.as_strided(parameter.sizes(), parameter.strides(), offset);
  return gradients.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

/// The gradients one after the other, of which they are views from then on.
at::Tensor packed(const BucketOf& bucket, const DataParallelOptions& options, int processes) {
  const at::NoGradGuard no_grad;
  const memory::TagScope tag(memory::Tag::Gradients);
  const auto& [parameters, members, layout] = bucket;
  at::Tensor all = at::empty({layout.size()}, parameters[members.front()].options().requires_grad(false));
  clear_between(all, layout.pieces());
  for (const std::size_t i : members) {
    at::Tensor& gradient = at::Tensor(parameters[i]).mutable_grad();
    const at::Tensor place = place_of(all, parameters[i], layout.offset(i));
    put(place, gradient);
    gradient = place;
  }
  share(all, options, processes);
  return all;
}

}  // namespace

void put(const at::Tensor& place, const at::Tensor& gradient) {
  if (!gradient.defined()) {
    place.zero_();
    return;
  }
  if (gradient.layout() != at::kStrided) {
    throw UsageError(fmt::format("parallel: the gradient of a parameter of shape {} is sparse; make it dense",
                                 c10::str(gradient.sizes())));
  }
  place.copy_(gradient);
}

void clear_between(const at::Tensor& all, const std::vector<Piece>& pieces) {
  std::int64_t end = 0;
  for (const Piece& piece : pieces) {
    all.narrow(0, end, piece.at - end).zero_();
    end = piece.at + piece.count;
  }
  all.narrow(0, end, all.numel() - end).zero_();
}

void share(const at::Tensor& gradients, const DataParallelOptions& options, int processes) {
  if (options.combine == DataParallelOptions::Combine::Mean && processes > 1) gradients.div_(processes);
}

BucketGradients::BucketGradients(ProcessGroup& group, const BucketOf& bucket, const DataParallelOptions& options,
                                 Reduction::Purpose purpose)
    : gradients_(packed(bucket, options, group.size())),
      sums_(options.reduce_in ? gradients_.to(*options.reduce_in) : gradients_),
      reduction_(group, sums_, options.order, purpose) {}

void BucketGradients::finish() {
  reduction_.finish();
  const at::NoGradGuard no_grad;
  if (!sums_.is_same(gradients_)) gradients_.copy_(sums_);
}

}  // namespace snug::parallel
