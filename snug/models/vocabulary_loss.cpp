#include "snug/models/vocabulary_loss.h"

#include <torch/types.h>

namespace snug::models {

at::Tensor plain_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.to(at::kFloat).view({-1, logits.size(-1)}), targets.reshape(-1));
}

}  // namespace snug::models
