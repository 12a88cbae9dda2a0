#include "snug/parallel/bucket_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"

namespace snug::parallel {
namespace {

std::int64_t elements_of(const std::vector<at::Tensor>& parameters, const Bucket& bucket) {
  std::int64_t elements = 0;
  for (const std::size_t i : bucket) elements += parameters[i].numel();
  return elements;
}

/// The place of a gradient, as the engine lays gradients out: like the parameter, where that is dense.
at::Tensor place_of(const at::Tensor& gradients, const at::Tensor& parameter, std::int64_t offset) {
  if (parameter.is_non_overlapping_and_dense())
    return gradients.as_strided(parameter.sizes(), parameter.strides(), offset);
  return gradients.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

at::Tensor filled(const std::vector<at::Tensor>& parameters, const Bucket& bucket, int processes, bool mean) {
  const at::NoGradGuard no_grad;
  const memory::TagScope tag(memory::Tag::Gradients);
  const std::int64_t elements = elements_of(parameters, bucket), flags = static_cast<std::int64_t>(bucket.size());
  const std::int64_t each = (elements + flags + processes - 1) / processes;
  at::Tensor gradients = at::empty({each * processes}, parameters[bucket.front()].options().requires_grad(false));
  gradients.narrow(0, elements, gradients.numel() - elements).zero_();
  std::int64_t offset = 0, flag = elements;
  for (const std::size_t i : bucket) {
    at::Tensor& gradient = at::Tensor(parameters[i]).mutable_grad();
    const at::Tensor place = place_of(gradients, parameters[i], offset);
    if (!gradient.defined()) {
      place.zero_();
    } else if (gradient.layout() != at::kStrided) {
      throw UsageError(fmt::format("parallel: the gradient of a parameter of shape {} is sparse; make it dense",
                                   c10::str(parameters[i].sizes())));
    } else {
      place.copy_(gradient);
      gradients[flag].fill_(1);
    }
    gradient = place;
    offset += parameters[i].numel();
    ++flag;
  }
  if (mean && processes > 1) gradients.narrow(0, 0, elements).div_(processes);
  return gradients;
}

}  // namespace

BucketGradients::BucketGradients(ProcessGroup& group, const std::vector<at::Tensor>& parameters, const Bucket& bucket,
                                 const DataParallelOptions& options, Reduction::Purpose purpose)
    : parameters_(&parameters),
      bucket_(&bucket),
      gradients_(filled(parameters, bucket, group.size(), options.combine == DataParallelOptions::Combine::Mean)),
      sums_(options.reduce_in ? gradients_.to(*options.reduce_in) : gradients_),
      reduction_(group, sums_, options.order, purpose) {}

void BucketGradients::finish() {
  reduction_.finish();
  const at::NoGradGuard no_grad;
  if (!sums_.is_same(gradients_)) gradients_.copy_(sums_);
  const std::int64_t elements = elements_of(*parameters_, *bucket_), flags = static_cast<std::int64_t>(bucket_->size());
  const at::Tensor have = gradients_.narrow(0, elements, flags).to(at::kDouble).cpu();
  for (std::int64_t i = 0; i < flags; ++i) {
    if (have.const_data_ptr<double>()[i] > 0) continue;
    at::Tensor((*parameters_)[(*bucket_)[static_cast<std::size_t>(i)]]).mutable_grad() = at::Tensor();
  }
}

}  // namespace snug::parallel
