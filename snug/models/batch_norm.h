#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <utility>

#include "snug/ops/tensor_parallel.h"

namespace snug::models {

/// Batch normalization (Ioffe and Szegedy 2015) of images (batch, channels, height, width), with the names, defaults
/// and bits of torch::nn::BatchNorm2d; and, once it has been told of a group, with mean and variance of the rows of all
/// its processes, as torch.nn.SyncBatchNorm (of Python alone) has it.
class BatchNorm2dImpl : public torch::nn::Module {
 public:
  explicit BatchNorm2dImpl(std::int64_t channels);

  at::Tensor forward(const at::Tensor& x);

  /// From now on, in training. All processes of the group run it alike.
  void synchronize(ops::LayerGroup group) { group_ = std::move(group); }

  at::Tensor weight, bias;
  at::Tensor running_mean, running_var;  ///< buffers
  at::Tensor num_batches_tracked;        ///< a buffer: int64, a scalar

 private:
  at::Tensor of_all(const at::Tensor& x);

  ops::LayerGroup group_;
};
TORCH_MODULE(BatchNorm2d);

/// All batch norms in the module and below it normalize by the rows of all processes of the group: of a model that is
/// trained by them, as by parallel::DataParallel. Returns how many there are. Throws UsageError for one of LibTorch's,
/// which cannot, with its path.
int synchronize_batch_norms(torch::nn::Module& module, const ops::LayerGroup& group);

}  // namespace snug::models
