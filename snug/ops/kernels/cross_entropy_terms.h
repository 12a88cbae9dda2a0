#pragma once

namespace snug::ops {

/// What is added up for a row of logits l with target t. With p their softmax, the loss of the row is
/// (1 - label_smoothing) * -log p[t] + label_smoothing * mean(-log p) + z_loss * logsumexp(l)^2, as in
/// torch.nn.functional.cross_entropy and PaLM (Chowdhery et al. 2022); a soft_cap that is not 0 makes l
/// soft_cap * tanh(l / soft_cap) first, as in Gemma 2.
struct CrossEntropyTerms {
  double label_smoothing = 0;  ///< 0 to 1
  double z_loss = 0;           ///< at least 0
  double soft_cap = 0;         ///< at least 0; 0: none
  friend bool operator==(const CrossEntropyTerms&, const CrossEntropyTerms&) = default;
};

}  // namespace snug::ops
