#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "snug/base/bytes.h"
#include "snug/ops/kernels/cross_entropy_terms.h"
#include "snug/ops/row_tiles.h"

namespace snug::ops {

/// How much of the logits is there at once.
struct LossTile {
  /// In the type of x. Rows are divided into as few groups as that makes, equally long to within a row, and as the last
  /// begun row is made whole, a group may have one more than fits.
  Bytes logits = 32_MiB;
  friend bool operator==(const LossTile&, const LossTile&) = default;
};

struct LinearLoss {
  LossTile tile = {};
  CrossEntropyTerms terms = {};
  std::int64_t ignored = -100;  ///< the target that does not count
  at::Tensor bias = {};         ///< (vocabulary); undefined: none
  /// What kept gradients are multiplied by until backward divides by it, so that those in fp16 do not vanish where the
  /// loss will be scaled by it (see optim::GradScaler::scale_tensor): one number, read in the forward pass; undefined:
  /// one. A power of two changes no bit.
  at::Tensor scale = {};
};

/// Mean cross-entropy in nats of the logits x W^T + b against `targets`, without ever having all logits: they are made
/// for a few rows of x at a time, and with them, in the forward pass, the gradients that will be asked for (as in Liger
/// Kernel, Hsu et al. 2024). x (..., in), W (vocabulary, in), targets int64 of x's other dimensions: in [0, vocabulary)
/// or ignored, else Error says which is not and where. A scalar, fp32, or fp64 for fp64. Products have the type of x
/// and W, as has the bias, and are raised to fp32 before it and the softmax; capped ones are rounded to that type
/// again. When no target counts the result is nan, as at::cross_entropy_loss has it. Differentiable once, with respect
/// to x, the bias and a plain W. Under autocast x and the bias are cast as for at::linear; W is cast for the products
/// alone, and its gradient, a sum in fp32, is not rounded to the short type. Memory: the tile's, and that of W where it
/// is cast, beside the gradients of x and, where they are asked for, of W and the bias; backward hands these on, and
/// copies them only where the graph is kept. Another tile sums the gradients of W and the bias, and the loss, in
/// another order; one of fewer rows than about 256 takes longer than all logits at once.
at::Tensor linear_cross_entropy(const at::Tensor& x, const Matrix& weight, const at::Tensor& targets,
                                const LinearLoss& loss = {});

}  // namespace snug::ops
