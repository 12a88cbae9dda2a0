#include "snug/models/batch_norm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

#include "snug/base/errors.h"
#include "snug/ops/sync_batch_norm.h"

namespace snug::models {
namespace {

constexpr double kEpsilon = 1e-5, kMomentum = 0.1;

}  // namespace

BatchNorm2dImpl::BatchNorm2dImpl(std::int64_t channels) {
  weight = register_parameter("weight", at::ones({channels}));
  bias = register_parameter("bias", at::zeros({channels}));
  running_mean = register_buffer("running_mean", at::zeros({channels}));
  running_var = register_buffer("running_var", at::ones({channels}));
  num_batches_tracked = register_buffer("num_batches_tracked", at::zeros({}, at::kLong));
}

at::Tensor BatchNorm2dImpl::forward(const at::Tensor& x) {
  if (is_training()) num_batches_tracked += 1;
  if (is_training() && group_) return of_all(x);
  return at::batch_norm(x, weight, bias, running_mean, running_var, is_training(), kMomentum, kEpsilon,
                        at::globalContext().userEnabledCuDNN());
}

at::Tensor BatchNorm2dImpl::of_all(const at::Tensor& x) {
  if (x.dim() != 4 || x.size(1) != weight.size(0)) {
    throw UsageError(fmt::format("batch norm: a tensor of [{}] for {} channels; give images as NxCxHxW with so many",
                                 fmt::join(x.sizes(), ", "), weight.size(0)));
  }
  const ops::NormalizedBatch batch = ops::sync_batch_norm(x, weight, bias, kEpsilon, group_);
  const at::NoGradGuard no_grad;
  running_mean.mul_(1 - kMomentum).add_(batch.mean, kMomentum);
  // Unbiased: over one less.
  running_var.mul_(1 - kMomentum).add_(batch.variance * (batch.count / (batch.count - 1)), kMomentum);
  return batch.values;
}

int synchronize_batch_norms(torch::nn::Module& module, const ops::LayerGroup& group) {
  std::vector<BatchNorm2dImpl*> found;
  if (auto* itself = dynamic_cast<BatchNorm2dImpl*>(&module)) found.push_back(itself);
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    if (auto* ours = dynamic_cast<BatchNorm2dImpl*>(child.value().get())) found.push_back(ours);
    const std::string& name = child.value()->name();
    if (name.starts_with("torch::nn::BatchNorm")) {
      throw UsageError(
          fmt::format("batch norm: {} is a {}, which normalizes by its own rows alone; make it a "
                      "snug::models::BatchNorm2d",
                      child.key(), name));
    }
  }
  for (BatchNorm2dImpl* norm : found) norm->synchronize(group);
  return static_cast<int>(found.size());
}

}  // namespace snug::models
