#include "snug/models/weights.h"

#include <variant>

#include "snug/models/embedding.h"
#include "snug/models/layer_parts.h"
#include "snug/models/linear.h"

namespace snug::models {

std::vector<at::Tensor> weights_of(const torch::nn::Module& model) {
  std::vector<at::Tensor> all = model.parameters();
  const auto add_packed = [&](const ops::Matrix& matrix) {
    const auto* const packed = std::get_if<ops::PackedMatrix>(&matrix);
    if (packed != nullptr && !is_among(all, packed->blocks)) all.push_back(packed->blocks);
  };
  for (const auto& module : model.modules()) {
    if (const auto* const linear = module->as<LinearImpl>()) add_packed(linear->matrix());
    if (const auto* const embedding = module->as<EmbeddingImpl>()) add_packed(embedding->matrix());
  }
  return all;
}

}  // namespace snug::models
