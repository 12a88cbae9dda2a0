#include "snug/models/embedding.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <utility>

#include "snug/base/errors.h"
#include "snug/models/parameter.h"
#include "snug/ops/packed_matrix.h"

namespace snug::models {

EmbeddingImpl::EmbeddingImpl(std::int64_t vocabulary, std::int64_t width)
    : weight(register_parameter("weight", normal_parameter({vocabulary, width}, kInitialDeviation))),
      vocabulary_(vocabulary),
      width_(width) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& tokens) {
  return packed_ ? ops::packed_embedding(*packed_, tokens) : at::embedding(weight, tokens);
}

void EmbeddingImpl::pack(ops::PackedMatrix packed) {
  if (packed.rows() != vocabulary_ || packed.columns() != width_) {
    throw Error(fmt::format("embedding: a packed weight of {}x{} in place of {}x{}", packed.rows(), packed.columns(),
                            vocabulary_, width_));
  }
  packed_ = std::move(packed);
  weight = at::Tensor();
  if (parameters_.contains("weight")) parameters_.erase("weight");
}

std::optional<ParameterPart> EmbeddingImpl::keep_rows(std::int64_t first, std::int64_t count) {
  vocabulary_ = count;
  if (!packed_) return keep_part(weight, 0, first, count);
  packed_ = ops::part_of(*packed_, 0, first, count);
  return std::nullopt;
}

ops::Matrix EmbeddingImpl::matrix() const {
  if (packed_) return *packed_;
  return weight;
}

}  // namespace snug::models
