#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include "snug/models/linear.h"
#include "snug/models/task.h"

namespace snug::models {

struct GptOptions {
  std::int64_t blocks = 6;
  std::int64_t width = 384;  ///< a multiple of heads
  std::int64_t heads = 6;
  std::int64_t sequence = 256;  ///< longest input
  std::int64_t vocabulary = 256;
  double dropout = 0.0;  ///< of the embedding and of both residual branches
};

/// One pre-norm transformer block: (batch, sequence, width) -> the same.
class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptOptions& options);
  at::Tensor forward(at::Tensor x);

 private:
  std::int64_t heads_;
  double dropout_;
  Linear qkv_, projection_, up_, down_;
  torch::nn::LayerNorm attention_norm_, mlp_norm_;
};
TORCH_MODULE(GptBlock);

/// A GPT-2-style decoder (Radford et al. 2019): learned positions, pre-norm blocks, causal attention, tanh-GELU, the
/// output projection tied to the token embedding. Dropout as in GPT-2 except inside attention, where it would rule
/// out the fused kernels. A plain LibTorch module that knows nothing of memory.
class GptImpl : public torch::nn::Module, public HasTask {
 public:
  explicit GptImpl(const GptOptions& options);

  /// Tokens int64 (batch, sequence) -> logits (batch, sequence, vocabulary).
  at::Tensor forward(const at::Tensor& tokens);

  /// Mean cross-entropy in nats of predicting `targets`, int64 (batch, sequence), from `tokens`: a scalar, fp32.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  [[nodiscard]] const GptOptions& options() const { return options_; }
  [[nodiscard]] Task task() const override { return Task::causal_lm(); }

 private:
  GptOptions options_;
  at::Tensor token_embedding_;     // (vocabulary, width)
  at::Tensor position_embedding_;  // (sequence, width)
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm final_norm_;
};
TORCH_MODULE(Gpt);

}  // namespace snug::models
