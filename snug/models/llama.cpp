#include "snug/models/llama.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <optional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/models/attention.h"
#include "snug/models/embedding.h"
#include "snug/models/parameter.h"
#include "snug/ops/linear_cross_entropy.h"
#include "snug/ops/packed_linear.h"

namespace snug::models {

/// Root-mean-square normalization (Zhang and Sennrich 2019), computed in fp32. A member of a class that the
/// header declares, so not in the anonymous namespace.
class LlamaRmsNormImpl : public torch::nn::Module {
 public:
  LlamaRmsNormImpl(std::int64_t width, double epsilon)
      : weight_(register_parameter("weight", constant_parameter({width}, 1))), epsilon_(epsilon) {}

  at::Tensor forward(const at::Tensor& x) { return at::rms_norm(x, weight_.sizes(), weight_, epsilon_); }

 private:
  at::Tensor weight_;
  double epsilon_;
};
TORCH_MODULE(LlamaRmsNorm);

namespace {

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaOptions& o)
      : heads_(o.heads),
        key_heads_(o.key_heads),
        query_(register_module("q_proj", Linear(o.width, o.heads * o.rotary.width, false))),
        key_(register_module("k_proj", Linear(o.width, o.key_heads * o.rotary.width, false))),
        value_(register_module("v_proj", Linear(o.width, o.key_heads * o.rotary.width, false))),
        output_(register_module("o_proj", Linear(o.heads * o.rotary.width, o.width, false))) {}

  at::Tensor forward(const at::Tensor& x, const RotaryTable& table, const std::optional<at::Tensor>& rows,
                     KeyValueCache::Layer* cache, std::int64_t seen) {
    const ModuleScope scope("self_attn");
    const at::Tensor query = rotate(split_heads(query_(x), heads_), table);
    at::Tensor key = rotate(split_heads(key_(x), key_heads_), table);
    at::Tensor value = split_heads(value_(x), key_heads_);
    if (cache != nullptr) append(*cache, seen, key, value);
    const at::Tensor attended =
        rows ? at::scaled_dot_product_attention(query, key, value, rows, 0.0, /*is_causal=*/false,
                                                /*scale=*/std::nullopt, /*enable_gqa=*/heads_ != key_heads_)
             : causal_attention(query, key, value, 0.0);
    return output_(merge_heads(attended));
  }

 private:
  std::int64_t heads_, key_heads_;
  Linear query_, key_, value_, output_;
};
TORCH_MODULE(LlamaAttention);

class LlamaFeedForwardImpl : public torch::nn::Module {
 public:
  explicit LlamaFeedForwardImpl(const LlamaOptions& o)
      : gate_(register_module("gate_proj", Linear(o.width, o.inner_width, false))),
        up_(register_module("up_proj", Linear(o.width, o.inner_width, false))),
        down_(register_module("down_proj", Linear(o.inner_width, o.width, false))) {}

  at::Tensor forward(const at::Tensor& x) {
    const ModuleScope scope("mlp");
    return down_(at::silu(gate_(x)) * up_(x));
  }

 private:
  Linear gate_, up_, down_;
};
TORCH_MODULE(LlamaFeedForward);

class LlamaLayerImpl : public torch::nn::Module {
 public:
  explicit LlamaLayerImpl(const LlamaOptions& o)
      : attention_(register_module("self_attn", LlamaAttention(o))),
        feed_forward_(register_module("mlp", LlamaFeedForward(o))),
        attention_norm_(register_module("input_layernorm", LlamaRmsNorm(o.width, o.norm_epsilon))),
        feed_forward_norm_(register_module("post_attention_layernorm", LlamaRmsNorm(o.width, o.norm_epsilon))) {}

  at::Tensor forward(at::Tensor x, const RotaryTable& table, const std::optional<at::Tensor>& rows,
                     KeyValueCache::Layer* cache, std::int64_t seen) {
    x = x + attention_(attention_norm_(x), table, rows, cache, seen);
    return x + feed_forward_(feed_forward_norm_(x));
  }

 private:
  LlamaAttention attention_;
  LlamaFeedForward feed_forward_;
  LlamaRmsNorm attention_norm_, feed_forward_norm_;
};
TORCH_MODULE(LlamaLayer);

void check(const LlamaOptions& o) {
  constexpr std::int64_t kMostLayers = 65536, kMost = std::int64_t{1} << 28;
  if (o.layers < 0 || o.layers > kMostLayers)
    throw UsageError(fmt::format("llama: {} layers are out of range", o.layers));
  for (const std::int64_t size : {o.width, o.inner_width, o.heads, o.key_heads, o.rotary.width, o.vocabulary}) {
    if (size < 1 || size > kMost) throw UsageError(fmt::format("llama: a size of {} is out of range", size));
  }
  if (o.heads < 1 || o.key_heads < 1 || o.heads % o.key_heads != 0) {
    throw UsageError(
        fmt::format("llama: {} heads are no multiple of {} heads of keys; set model.heads or model.key_heads so "
                    "that each of these serves as many of those",
                    o.heads, o.key_heads));
  }
  if (o.rotary.width < 2 || o.rotary.width % 2 != 0) {
    throw UsageError(
        fmt::format("llama: a head's width of {} is not even, and its halves turn together; set model.width to an even "
                    "multiple of model.heads",
                    o.rotary.width));
  }
}

}  // namespace

class LlamaImpl::Decoder : public torch::nn::Module {
 public:
  explicit Decoder(const LlamaOptions& o)
      : embedding_(register_module("embed_tokens", Embedding(o.vocabulary, o.width))), norm_(nullptr) {
    for (std::int64_t i = 0; i < o.layers; ++i) layers_->push_back(LlamaLayer(o));
    register_module("layers", layers_);
    norm_ = register_module("norm", LlamaRmsNorm(o.width, o.norm_epsilon));
  }

  at::Tensor forward(const at::Tensor& tokens, const RotaryOptions& rotary, KeyValueCache* cache,
                     const DocumentRows* rows) {
    const std::int64_t seen = cache == nullptr ? 0 : cache->length;
    if (cache != nullptr) cache->layers.resize(layers_->size());
    at::Tensor x = embedding_(tokens);
    // In the type of the weights, and not that of autocast, as the reference has it.
    RotaryTable table = rotary_table(rotary, seen, tokens.size(1), tokens.device());
    table = {table.cosines.to(x.scalar_type()), table.sines.to(x.scalar_type())};
    std::optional<at::Tensor> mask;
    if (rows != nullptr) {
      const auto at_positions = [&](const at::Tensor& t) { return at::embedding(t, rows->positions).unsqueeze(1); };
      table = {at_positions(table.cosines), at_positions(table.sines)};
      mask = rows->mask;
    }
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      const ModuleScope scope(fmt::format("layers.{}", i));
      x = layers_->ptr<LlamaLayerImpl>(i)->forward(std::move(x), table, mask,
                                                   cache == nullptr ? nullptr : &cache->layers[i], seen);
    }
    if (cache != nullptr) cache->length += tokens.size(1);
    return norm_(x);
  }

  [[nodiscard]] ops::Matrix embedding() const { return embedding_->matrix(); }

 private:
  Embedding embedding_;
  torch::nn::ModuleList layers_;
  LlamaRmsNorm norm_;
};

LlamaImpl::LlamaImpl(const LlamaOptions& options) : options_(options), head_(nullptr) {
  check(options_);
  decoder_ = register_module("model", std::make_shared<Decoder>(options_));
  if (!options_.tied) head_ = register_module("lm_head", Linear(options_.width, options_.vocabulary, false));
}

LlamaImpl::~LlamaImpl() = default;

at::Tensor LlamaImpl::hidden(const at::Tensor& tokens, KeyValueCache* cache, const DocumentRows* rows) {
  const std::int64_t length = tokens.size(1) + (cache == nullptr ? 0 : cache->length);
  if (length > options_.sequence) {
    throw UsageError(fmt::format("llama: a sequence of {} is longer than the model's {}", length, options_.sequence));
  }
  return decoder_->forward(tokens, options_.rotary, cache, rows);
}

at::Tensor LlamaImpl::forward(const at::Tensor& tokens, KeyValueCache* cache) { return logits(hidden(tokens, cache)); }

at::Tensor LlamaImpl::forward_last(const at::Tensor& tokens, KeyValueCache* cache) {
  return logits(hidden(tokens, cache).narrow(1, tokens.size(1) - 1, 1)).squeeze(1);
}

at::Tensor LlamaImpl::logits(const at::Tensor& x) {
  const ModuleScope scope("lm_head");
  if (head_) return head_(x);
  const ops::Matrix embedding = decoder_->embedding();
  const auto* const packed = std::get_if<ops::PackedMatrix>(&embedding);
  return packed != nullptr ? ops::packed_linear(x, *packed) : at::linear(x, std::get<at::Tensor>(embedding));
}

at::Tensor LlamaImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  return loss_of(hidden(tokens, nullptr), targets);
}

at::Tensor LlamaImpl::loss(const at::Tensor& tokens, const at::Tensor& targets, const DocumentRows& rows) {
  return loss_of(hidden(tokens, nullptr, &rows), targets);
}

at::Tensor LlamaImpl::loss_of(const at::Tensor& x, const at::Tensor& targets) {
  const ModuleScope scope("loss");
  if (head_ && head_->adapted()) {  // its logits are more than one product
    const at::Tensor all = logits(x);
    return at::cross_entropy_loss(all.to(at::kFloat).view({-1, all.size(-1)}), targets.reshape(-1));
  }
  return ops::linear_cross_entropy(x, head_ ? head_->matrix() : decoder_->embedding(), targets);
}

}  // namespace snug::models
