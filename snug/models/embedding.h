#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <optional>

#include "snug/models/layer_parts.h"
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

  /// These rows alone from now on. What has become of the parameter; nullopt for a packed one, which is none.
  std::optional<ParameterPart> keep_rows(std::int64_t first, std::int64_t count);

  /// As LinearImpl::drop_packed.
  void drop_packed() { packed_.reset(); }

  [[nodiscard]] ops::Matrix matrix() const;

  at::Tensor weight;  ///< undefined when packed

 private:
  std::int64_t vocabulary_, width_;
  std::optional<ops::PackedMatrix> packed_;
};
TORCH_MODULE(Embedding);

}  // namespace snug::models
