#pragma once

#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snug/models/causal_lm.h"

namespace snug::models {

/// How the parameters of GPT-2 are named, ordered and stored.
enum class Gpt2Layout : unsigned char {
  Transformers,  ///< as in Hugging Face's GPT2LMHeadModel, in which matrices are (in, out)
  Flat,          ///< "token_embedding", "blocks.0.qkv.weight", ...: see gpt.h; matrices are (out, in)
};

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
  Gpt2Layout layout = Gpt2Layout::Transformers;
  VocabularyLoss loss = PlainLoss{};
};

/// Options of a released model by its name: "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl". Throws UsageError for
/// others, with the names there are.
Gpt2Options gpt2_options(std::string_view name);
std::vector<std::string> gpt2_names();

/// The parameter of Gpt2 that a tensor of a file of GPT-2 holds: "transformer.h.0.ln_1.weight" is itself, and so is
/// "h.0.ln_1.weight", as the files first released have it. nullopt for the masks of attention, which are no parameters,
/// and for the output projection, which is the token embedding.
std::optional<std::string> gpt2_name(std::string_view name);

/// GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks, causal attention, tanh-GELU, the output projection
/// tied to the token embedding.
class Gpt2Impl : public CausalLmImpl {
 public:
  /// Throws UsageError when the width is not a multiple of the heads.
  explicit Gpt2Impl(const Gpt2Options& options);

  [[nodiscard]] const Gpt2Options& options() const { return options_; }
  [[nodiscard]] std::vector<NamedLayout> layouts() const override;
  [[nodiscard]] std::int64_t heads() const override { return options_.heads; }

 private:
  Gpt2Options options_;
};
TORCH_MODULE(Gpt2);

}  // namespace snug::models
