#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "snug/replay/region.h"

namespace snug::testing {

/// Parts of a small language model: an embedding, eight layers with dropout, and a projection with a loss.
struct InStages {
  struct Sizes {
    bool shared = false;  ///< the projection has the weights of the embedding
    std::int64_t width = 24, rows = 3;
  };
  static constexpr std::int64_t kTokens = 40;
  static constexpr int kLayers = 8;

  explicit InStages(Sizes of) : sizes(of), is_shared(of.shared) {
    const std::int64_t width = of.width;
    torch::manual_seed(11);
    embedding = torch::nn::Embedding(kTokens, width);
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(torch::nn::Sequential(torch::nn::Linear(width, 4 * width), torch::nn::GELU(),
                                             torch::nn::Linear(4 * width, width), torch::nn::Dropout(0.1)));
    }
    head = torch::nn::Linear(torch::nn::LinearOptions(width, kTokens).bias(false));
    if (of.shared) head->weight = embedding->weight;
  }
  [[nodiscard]] at::Tensor batch(int micro_batch) const {
    return torch::arange(6 * sizes.rows, at::kLong).view({sizes.rows, 6}).mul(5 * micro_batch + 3).remainder(kTokens);
  }
  /// `stages`: how many the layers are divided into.
  at::Tensor run(int stage, int stages, const at::Tensor& input, int micro_batch, bool recompute) {
    torch::manual_seed(100 * micro_batch + stage);  // the same random numbers wherever it runs
    at::Tensor x = stage == 0 ? embedding(batch(micro_batch)) : input;
    const int each = kLayers / stages;
    {
      std::optional<Region> region;
      if (recompute) region.emplace(Recompute{});
      for (int i = stage * each; i < (stage + 1) * each; ++i) x = x + layers[static_cast<std::size_t>(i)]->forward(x);
    }
    if (stage != stages - 1) return x;
    return torch::cross_entropy_loss(head(x).view({-1, kTokens}), batch(micro_batch).roll(-1, 1).view(-1));
  }
  [[nodiscard]] std::vector<at::Tensor> parameters_of(int stage, int stages) const {
    std::vector<at::Tensor> all;
    if (stage == 0) all.push_back(embedding->weight);
    const int each = kLayers / stages;
    for (int i = stage * each; i < (stage + 1) * each; ++i) {
      for (const at::Tensor& p : layers[static_cast<std::size_t>(i)]->parameters()) all.push_back(p);
    }
    if (stage == stages - 1 && !is_shared) all.push_back(head->weight);
    return all;
  }
  Sizes sizes;
  bool is_shared;
  torch::nn::Embedding embedding{nullptr};
  std::vector<torch::nn::Sequential> layers;
  torch::nn::Linear head{nullptr};
};

}  // namespace snug::testing
