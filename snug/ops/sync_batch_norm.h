#pragma once

#include <ATen/core/Tensor.h>

#include "snug/ops/tensor_parallel.h"

namespace snug::ops {

struct NormalizedBatch {
  at::Tensor values;  ///< as the input
  // Of all processes' rows, fp32, one number per channel. Without gradients.
  at::Tensor mean;
  at::Tensor variance;  ///< the sum of squares over the number
  at::Tensor count;     ///< how many numbers there were per channel: a scalar, fp32
};

/// Batch normalization (Ioffe and Szegedy 2015) of x (batch, channels, ...) by mean and variance of the rows of all
/// processes of the group, which may have unequal numbers of them, as torch.nn.SyncBatchNorm has it. Moments are put
/// together in fp64, in the order of the ranks. `weight` and `bias` (channels), or undefined. Of gradients, that of x
/// is of the sum of all processes' losses; those of weight and bias are this process's own. All call it alike, in the
/// forward pass, where a plan may have all do it again, and by autograd in the backward pass. Not differentiable twice.
NormalizedBatch sync_batch_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                                const LayerGroup& group);

}  // namespace snug::ops
