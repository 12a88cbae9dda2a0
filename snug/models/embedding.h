#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include "snug/ops/row_tiles.h"

namespace snug::models {

/// A vector for each token, parameter `weight` (vocabulary, width); it can be replaced by a packed one.
class EmbeddingImpl : public torch::nn::Module {
 public:
  EmbeddingImpl(std::int64_t vocabulary, std::int64_t width);

  /// Tokens int64 of any shape -> (..., width)
  at::Tensor forward(const at::Tensor& tokens);

  /// As LinearImpl::pack.
  void pack(ops::PackedMatrix packed);

  [[nodiscard]] ops::Matrix matrix() const;

  at::Tensor weight;  ///< undefined when packed

 private:
  std::int64_t vocabulary_, width_;
  std::optional<ops::PackedMatrix> packed_;
};
TORCH_MODULE(Embedding);

}  // namespace snug::models
