#pragma once

#include <ATen/core/Tensor.h>

#include <variant>

#include "snug/ops/linear_cross_entropy.h"

namespace snug::models {

/// The logits of all tokens at once, as PyTorch has it.
struct PlainLoss {
  friend bool operator==(const PlainLoss&, const PlainLoss&) = default;
};
/// Those of a few tokens at a time, and with them, in the forward pass, the gradients: ops::linear_cross_entropy. Sums
/// are taken in another order.
using TiledLoss = ops::LossTile;

/// How a model computes the loss over its vocabulary.
using VocabularyLoss = std::variant<PlainLoss, TiledLoss>;

/// Mean cross-entropy in nats of logits (..., vocabulary) against `targets`, int64 of the other dimensions; those of
/// -100 do not count. A scalar, fp32.
at::Tensor plain_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace snug::models
