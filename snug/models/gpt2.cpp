#include "snug/models/gpt2.h"

#include <fmt/format.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <utility>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/models/attention.h"
#include "snug/models/embedding.h"
#include "snug/models/layer_norm.h"
#include "snug/models/linear.h"
#include "snug/models/parameter.h"

namespace snug::models {
namespace {

/// y = x W + b, as the reference stores it: the weight is (in, out).
Linear conv1d(std::int64_t in, std::int64_t out, double deviation = kInitialDeviation) {
  return Linear(in, out, true, deviation, WeightLayout::InOut);
}

class Gpt2AttentionImpl : public torch::nn::Module {
 public:
  explicit Gpt2AttentionImpl(const Gpt2Options& o)
      : heads_(o.heads),
        attention_dropout_(o.attention_dropout),
        residual_dropout_(o.residual_dropout),
        query_key_value_(register_module("c_attn", conv1d(o.width, 3 * o.width))),
        output_(register_module("c_proj", conv1d(o.width, o.width, residual_deviation(o.layers)))) {}

  at::Tensor forward(const at::Tensor& x, KeyValueCache::Layer* cache, std::int64_t seen) {
    const ModuleScope scope("attn");
    const auto parts = query_key_value_(x).split(x.size(2), 2);
    at::Tensor key = split_heads(parts[1], heads_), value = split_heads(parts[2], heads_);
    if (cache != nullptr) append(*cache, seen, key, value);
    const at::Tensor attended =
        causal_attention(split_heads(parts[0], heads_), key, value, is_training() ? attention_dropout_ : 0.0);
    return at::dropout(output_(merge_heads(attended)), residual_dropout_, is_training());
  }

 private:
  std::int64_t heads_;
  double attention_dropout_, residual_dropout_;
  Linear query_key_value_, output_;
};
TORCH_MODULE(Gpt2Attention);

class Gpt2FeedForwardImpl : public torch::nn::Module {
 public:
  explicit Gpt2FeedForwardImpl(const Gpt2Options& o)
      : dropout_(o.residual_dropout),
        up_(register_module("c_fc", conv1d(o.width, o.inner_width))),
        down_(register_module("c_proj", conv1d(o.inner_width, o.width, residual_deviation(o.layers)))) {}

  at::Tensor forward(const at::Tensor& x) {
    const ModuleScope scope("mlp");
    return at::dropout(down_(at::gelu(up_(x), "tanh")), dropout_, is_training());
  }

 private:
  double dropout_;
  Linear up_, down_;
};
TORCH_MODULE(Gpt2FeedForward);

class Gpt2LayerImpl : public torch::nn::Module {
 public:
  explicit Gpt2LayerImpl(const Gpt2Options& o)
      : attention_norm_(register_module("ln_1", LayerNorm(o.width, o.norm_epsilon))),
        attention_(register_module("attn", Gpt2Attention(o))),
        feed_forward_norm_(register_module("ln_2", LayerNorm(o.width, o.norm_epsilon))),
        feed_forward_(register_module("mlp", Gpt2FeedForward(o))) {}

  at::Tensor forward(at::Tensor x, KeyValueCache::Layer* cache, std::int64_t seen) {
    x = x + attention_(attention_norm_(x), cache, seen);
    return x + feed_forward_(feed_forward_norm_(x));
  }

 private:
  LayerNorm attention_norm_;
  Gpt2Attention attention_;
  LayerNorm feed_forward_norm_;
  Gpt2FeedForward feed_forward_;
};
TORCH_MODULE(Gpt2Layer);

}  // namespace

class Gpt2Impl::Transformer : public torch::nn::Module {
 public:
  explicit Transformer(const Gpt2Options& o)
      : dropout_(o.embedding_dropout),
        tokens_(register_module("wte", Embedding(o.vocabulary, o.width))),
        positions_(register_module("wpe", Embedding(o.sequence, o.width))),
        norm_(nullptr) {
    for (std::int64_t i = 0; i < o.layers; ++i) layers_->push_back(Gpt2Layer(o));
    register_module("h", layers_);
    norm_ = register_module("ln_f", LayerNorm(o.width, o.norm_epsilon));
  }

  at::Tensor forward(const at::Tensor& tokens, KeyValueCache* cache) {
    const std::int64_t seen = cache == nullptr ? 0 : cache->length;
    if (cache != nullptr) cache->layers.resize(layers_->size());
    at::Tensor x = tokens_(tokens) + positions_->weight.narrow(0, seen, tokens.size(1));
    x = at::dropout(x, dropout_, is_training());
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      const ModuleScope scope(fmt::format("h.{}", i));
      x = layers_->ptr<Gpt2LayerImpl>(i)->forward(std::move(x), cache == nullptr ? nullptr : &cache->layers[i], seen);
    }
    if (cache != nullptr) cache->length += tokens.size(1);
    return norm_(x);
  }

  [[nodiscard]] const at::Tensor& embedding() const { return tokens_->weight; }

 private:
  double dropout_;
  Embedding tokens_, positions_;
  torch::nn::ModuleList layers_;
  LayerNorm norm_;
};

Gpt2Impl::Gpt2Impl(const Gpt2Options& options) : options_(options) {
  check_heads("gpt2", options_.width, options_.heads);
  transformer_ = register_module("transformer", std::make_shared<Transformer>(options_));
}

Gpt2Impl::~Gpt2Impl() = default;

at::Tensor Gpt2Impl::hidden(const at::Tensor& tokens, KeyValueCache* cache) {
  const std::int64_t length = tokens.size(1) + (cache == nullptr ? 0 : cache->length);
  if (length > options_.sequence) {
    throw UsageError(
        fmt::format("gpt2: a sequence of {} is longer than the model's {}; cut it", length, options_.sequence));
  }
  return transformer_->forward(tokens, cache);
}

at::Tensor Gpt2Impl::logits(const at::Tensor& x) {
  const ModuleScope scope("lm_head");
  return at::linear(x, transformer_->embedding());
}

at::Tensor Gpt2Impl::forward(const at::Tensor& tokens, KeyValueCache* cache) { return logits(hidden(tokens, cache)); }

at::Tensor Gpt2Impl::forward_last(const at::Tensor& tokens, KeyValueCache* cache) {
  return logits(hidden(tokens, cache).narrow(1, tokens.size(1) - 1, 1)).squeeze(1);
}

at::Tensor Gpt2Impl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  const at::Tensor all = forward(tokens);
  return at::cross_entropy_loss(all.to(at::kFloat).view({-1, all.size(-1)}), targets.reshape(-1));
}

}  // namespace snug::models
