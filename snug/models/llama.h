#pragma once

#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "snug/models/causal_lm.h"

namespace snug::models {

struct LlamaOptions {
  std::int64_t layers = 16;
  std::int64_t width = 2048;
  std::int64_t inner_width = 8192;  ///< of the feed-forward part
  std::int64_t heads = 32;
  std::int64_t key_heads = 8;  ///< heads is a multiple of it; grouped-query attention when they differ
  std::int64_t vocabulary = 128256;
  std::int64_t sequence = 8192;  ///< longest input
  double norm_epsilon = 1e-5;
  RotaryOptions rotary{};  ///< rotary.width is the width of a head
  bool tied = false;       ///< the output projection is the token embedding
  VocabularyLoss loss = TiledLoss{};
};

/// Options of a released model by its name: "SmolLM2-135M", "SmolLM2-360M", "SmolLM2-1.7B", "Llama-3-8B",
/// "Llama-3.1-8B", "Llama-3.2-1B", "Llama-3.2-3B", "Llama-2-7B", "TinyLlama-1.1B". Throws UsageError for others, with
/// the names there are.
LlamaOptions llama_options(std::string_view name);
std::vector<std::string> llama_names();

/// A decoder of the Llama family (Touvron et al. 2023): RMSNorm, rotary embeddings, grouped-query attention, SwiGLU.
/// Parameters have the names and shapes of Hugging Face's LlamaForCausalLM; a tied lm_head.weight is not there twice.
class LlamaImpl : public CausalLmImpl {
 public:
  /// Throws UsageError for sizes out of range, heads that are no multiple of key_heads, and heads of an odd width.
  explicit LlamaImpl(const LlamaOptions& options);

  [[nodiscard]] const LlamaOptions& options() const { return options_; }
  [[nodiscard]] std::vector<NamedLayout> layouts() const override;
  [[nodiscard]] std::int64_t heads() const override { return options_.key_heads; }

 private:
  LlamaOptions options_;
};
TORCH_MODULE(Llama);

}  // namespace snug::models
