#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "snug/ops/kernels/cross_entropy_terms.h"

namespace snug::ops {

/// Logits (rows, columns), contiguous, their targets, int64 (rows), and the bias (columns) that is still to be added,
/// of the logits' type.
struct Logits {
  at::Tensor values;
  at::Tensor targets;
  std::optional<at::Tensor> bias = std::nullopt;
  std::int64_t ignored = -100;  ///< the target of rows that do not count
};

/// The losses of the rows, fp64 (rows), 0 where they do not count. Computed in fp32, or in fp64 for fp64. The values
/// become the gradients of `times` times their loss, rounded to their type; with `times` 0 what they become is open.
/// Not differentiable. On the CPU two passes for the loss and one for the gradients, with one result for any number of
/// threads; elsewhere LibTorch's operators one after the other.
at::Tensor softmax_loss(const Logits& logits, const CrossEntropyTerms& terms, double times);

/// The same by LibTorch's operators on any device.
at::Tensor softmax_loss_of_operators(const Logits& logits, const CrossEntropyTerms& terms, double times);

}  // namespace snug::ops
