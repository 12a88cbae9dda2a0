#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "snug/models/key_value_cache.h"
#include "snug/models/linear.h"
#include "snug/models/rotary.h"
#include "snug/models/task.h"

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
};

/// Options of a released model by its name: "SmolLM2-135M", "SmolLM2-360M", "SmolLM2-1.7B", "Llama-3-8B",
/// "Llama-3.1-8B", "Llama-3.2-1B", "Llama-3.2-3B", "Llama-2-7B", "TinyLlama-1.1B". Throws UsageError for others, with
/// the names there are.
LlamaOptions llama_options(std::string_view name);
std::vector<std::string> llama_names();

/// Several documents in one row, which do not see each other.
struct DocumentRows {
  at::Tensor positions;  ///< int64 (batch, sequence), from 0 in each document
  at::Tensor mask;       ///< bool (batch, 1, sequence, sequence): whether a token sees another
};

/// A decoder of the Llama family (Touvron et al. 2023): RMSNorm, rotary embeddings, grouped-query attention, SwiGLU.
/// Parameters have the names and shapes of Hugging Face's LlamaForCausalLM; a tied lm_head.weight is not there twice.
/// A plain LibTorch module that knows nothing of memory.
class LlamaImpl : public torch::nn::Module, public HasTask {
 public:
  explicit LlamaImpl(const LlamaOptions& options);
  ~LlamaImpl() override;

  /// Tokens int64 (batch, sequence) -> logits (batch, sequence, vocabulary). With a cache the tokens follow those that
  /// it has seen, which they attend to, and are added to it.
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache* cache = nullptr);
  /// The logits behind the last token alone: (batch, vocabulary).
  at::Tensor forward_last(const at::Tensor& tokens, KeyValueCache* cache = nullptr);

  /// Mean cross-entropy in nats of predicting `targets`, int64 (batch, sequence), from `tokens`: a scalar, fp32.
  /// Targets of -100 do not count. The logits are never there at once: see ops::linear_cross_entropy.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);
  /// The same of rows of documents.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets, const DocumentRows& rows);

  [[nodiscard]] const LlamaOptions& options() const { return options_; }
  [[nodiscard]] Task task() const override { return Task::causal_lm(); }

 private:
  class Decoder;

  at::Tensor hidden(const at::Tensor& tokens, KeyValueCache* cache, const DocumentRows* rows = nullptr);
  at::Tensor loss_of(const at::Tensor& x, const at::Tensor& targets);
  at::Tensor logits(const at::Tensor& x);

  LlamaOptions options_;
  std::shared_ptr<Decoder> decoder_;
  Linear head_;  ///< empty when tied
};
TORCH_MODULE(Llama);

}  // namespace snug::models
