#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/models/key_value_cache.h"
#include "snug/models/task.h"

namespace snug::models {

struct Gpt2Options {
  std::int64_t layers = 12;
  std::int64_t width = 768;         ///< a multiple of heads
  std::int64_t inner_width = 3072;  ///< of the feed-forward part
  std::int64_t heads = 12;
  std::int64_t vocabulary = 50257;
  std::int64_t sequence = 1024;  ///< longest input
  double norm_epsilon = 1e-5;
  double embedding_dropout = 0.1;
  double residual_dropout = 0.1;   ///< of what both parts of a layer add
  double attention_dropout = 0.1;  ///< of attention's probabilities; see causal_attention
};

/// Options of a released model by its name: "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl". Throws UsageError for
/// others, with the names there are.
Gpt2Options gpt2_options(std::string_view name);
std::vector<std::string> gpt2_names();

/// The parameter of Gpt2 that a tensor of a file of GPT-2 holds: "transformer.h.0.ln_1.weight" is itself, and so is
/// "h.0.ln_1.weight", as the files first released have it. nullopt for the masks of attention, which are no parameters,
/// and for the output projection, which is the token embedding.
std::optional<std::string> gpt2_name(std::string_view name);

/// GPT-2 (Radford et al. 2019): learned positions, pre-norm layers, causal attention, tanh-GELU, the output projection
/// tied to the token embedding. Parameters have the names and shapes of Hugging Face's GPT2LMHeadModel, in which
/// matrices are (in, out). A plain LibTorch module that knows nothing of memory.
class Gpt2Impl : public torch::nn::Module, public HasTask {
 public:
  /// Throws UsageError when the width is not a multiple of the heads.
  explicit Gpt2Impl(const Gpt2Options& options);
  ~Gpt2Impl() override;

  /// Tokens int64 (batch, sequence) -> logits (batch, sequence, vocabulary). With a cache the tokens follow those that
  /// it has seen, which they attend to, and are added to it. Throws UsageError when that is longer than the model's.
  at::Tensor forward(const at::Tensor& tokens, KeyValueCache* cache = nullptr);
  /// The logits behind the last token alone: (batch, vocabulary).
  at::Tensor forward_last(const at::Tensor& tokens, KeyValueCache* cache = nullptr);

  /// Mean cross-entropy in nats of predicting `targets`, int64 (batch, sequence), from `tokens`: a scalar, fp32.
  /// Targets of -100 do not count.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  [[nodiscard]] const Gpt2Options& options() const { return options_; }
  [[nodiscard]] Task task() const override { return Task::causal_lm(); }

 private:
  class Transformer;

  at::Tensor hidden(const at::Tensor& tokens, KeyValueCache* cache);
  at::Tensor logits(const at::Tensor& x);

  Gpt2Options options_;
  std::shared_ptr<Transformer> transformer_;
};
TORCH_MODULE(Gpt2);

}  // namespace snug::models
