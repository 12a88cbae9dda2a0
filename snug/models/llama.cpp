#include "snug/models/llama.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"

namespace snug::models {
namespace {

/// Root-mean-square normalization (Zhang and Sennrich 2019), computed in fp32.
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(std::int64_t width, double epsilon)
      : weight_(register_parameter("weight", torch::ones({width}))), epsilon_(epsilon) {}

  at::Tensor forward(const at::Tensor& x) { return at::rms_norm(x, weight_.sizes(), weight_, epsilon_); }

 private:
  at::Tensor weight_;
  double epsilon_;
};
TORCH_MODULE(RmsNorm);

class EmbeddingImpl : public torch::nn::Module {
 public:
  EmbeddingImpl(std::int64_t vocabulary, std::int64_t width)
      : weight(register_parameter("weight", torch::empty({vocabulary, width}).normal_(0, 0.02))) {}

  at::Tensor weight;
};
TORCH_MODULE(Embedding);

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const LlamaOptions& o)
      : heads_(o.heads),
        key_heads_(o.key_heads),
        query_(register_module("q_proj", Linear(o.width, o.heads * o.rotary.width, false))),
        key_(register_module("k_proj", Linear(o.width, o.key_heads * o.rotary.width, false))),
        value_(register_module("v_proj", Linear(o.width, o.key_heads * o.rotary.width, false))),
        output_(register_module("o_proj", Linear(o.heads * o.rotary.width, o.width, false))) {}

  at::Tensor forward(const at::Tensor& x, const RotaryTable& table, KeyValueCache::Layer* cache, std::int64_t seen) {
    const ModuleScope scope("self_attn");
    const at::Tensor query = rotate(split_heads(query_(x), heads_), table);
    at::Tensor key = rotate(split_heads(key_(x), key_heads_), table);
    at::Tensor value = split_heads(value_(x), key_heads_);
    if (cache != nullptr) append(*cache, key, value, seen);
    // A query of several positions behind what the cache has seen needs a mask of its own.
    const bool square = key.size(2) == query.size(2);
    std::optional<at::Tensor> mask;
    if (!square && query.size(2) > 1) mask = causal_mask(query, key);
    const at::Tensor attended = at::scaled_dot_product_attention(query, key, value, mask, 0.0, square,
                                                                 /*scale=*/std::nullopt, heads_ != key_heads_);
    return output_(attended.transpose(1, 2).flatten(2));
  }

 private:
  static at::Tensor split_heads(const at::Tensor& x, std::int64_t heads) {
    return x.unflatten(2, {heads, -1}).transpose(1, 2);  // (batch, heads, sequence, width of a head)
  }

  /// The cache has room for more than it holds, and doubles it when that is used up.
  static void append(KeyValueCache::Layer& cache, at::Tensor& key, at::Tensor& value, std::int64_t seen) {
    const std::int64_t length = seen + key.size(2);
    const auto add = [&](at::Tensor& all, at::Tensor& fresh) {
      if (!all.defined() || all.size(2) < length) {
        auto sizes = fresh.sizes().vec();
        sizes[2] = all.defined() ? std::max(length, 2 * all.size(2)) : length;
        const at::Tensor larger = at::empty(sizes, fresh.options());
        if (seen > 0) larger.narrow(2, 0, seen).copy_(all.narrow(2, 0, seen));
        all = larger;
      }
      all.narrow(2, seen, fresh.size(2)).copy_(fresh);
      fresh = all.narrow(2, 0, length);
    };
    add(cache.keys, key);
    add(cache.values, value);
  }

  static at::Tensor causal_mask(const at::Tensor& query, const at::Tensor& key) {
    const std::int64_t rows = query.size(2), columns = key.size(2);
    return at::ones({rows, columns}, query.options().dtype(at::kBool)).tril(columns - rows);
  }

  std::int64_t heads_, key_heads_;
  Linear query_, key_, value_, output_;
};
TORCH_MODULE(Attention);

class FeedForwardImpl : public torch::nn::Module {
 public:
  explicit FeedForwardImpl(const LlamaOptions& o)
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
TORCH_MODULE(FeedForward);

class LayerImpl : public torch::nn::Module {
 public:
  explicit LayerImpl(const LlamaOptions& o)
      : attention_(register_module("self_attn", Attention(o))),
        feed_forward_(register_module("mlp", FeedForward(o))),
        attention_norm_(register_module("input_layernorm", RmsNorm(o.width, o.norm_epsilon))),
        feed_forward_norm_(register_module("post_attention_layernorm", RmsNorm(o.width, o.norm_epsilon))) {}

  at::Tensor forward(at::Tensor x, const RotaryTable& table, KeyValueCache::Layer* cache, std::int64_t seen) {
    x = x + attention_(attention_norm_(x), table, cache, seen);
    return x + feed_forward_(feed_forward_norm_(x));
  }

 private:
  Attention attention_;
  FeedForward feed_forward_;
  RmsNorm attention_norm_, feed_forward_norm_;
};
TORCH_MODULE(Layer);

void check(const LlamaOptions& o) {
  if (o.heads < 1 || o.key_heads < 1 || o.heads % o.key_heads != 0) {
    throw UsageError(fmt::format("llama: {} heads are no multiple of {} heads of keys", o.heads, o.key_heads));
  }
  if (o.rotary.width < 2 || o.rotary.width % 2 != 0) {
    throw UsageError(
        fmt::format("llama: a head's width of {} is not even, and its halves turn together", o.rotary.width));
  }
}

}  // namespace

class LlamaImpl::Decoder : public torch::nn::Module {
 public:
  explicit Decoder(const LlamaOptions& o)
      : embedding_(register_module("embed_tokens", Embedding(o.vocabulary, o.width))), norm_(nullptr) {
    for (std::int64_t i = 0; i < o.layers; ++i) layers_->push_back(Layer(o));
    register_module("layers", layers_);
    norm_ = register_module("norm", RmsNorm(o.width, o.norm_epsilon));
  }

  at::Tensor forward(const at::Tensor& tokens, const RotaryOptions& rotary, KeyValueCache* cache) {
    const std::int64_t seen = cache == nullptr ? 0 : cache->length;
    if (cache != nullptr) cache->layers.resize(layers_->size());
    at::Tensor x = at::embedding(embedding_->weight, tokens);
    // In the type of the weights, and not that of autocast, as the reference has it.
    RotaryTable table = rotary_table(rotary, seen, tokens.size(1), tokens.device());
    table = {table.cosines.to(x.scalar_type()), table.sines.to(x.scalar_type())};
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      const ModuleScope scope(fmt::format("layers.{}", i));
      x = layers_->ptr<LayerImpl>(i)->forward(std::move(x), table, cache == nullptr ? nullptr : &cache->layers[i],
                                              seen);
    }
    if (cache != nullptr) cache->length += tokens.size(1);
    return norm_(x);
  }

  [[nodiscard]] const at::Tensor& embedding() const { return embedding_->weight; }

 private:
  Embedding embedding_;
  torch::nn::ModuleList layers_;
  RmsNorm norm_;
};

LlamaImpl::LlamaImpl(const LlamaOptions& options) : options_(options), head_(nullptr) {
  check(options_);
  decoder_ = register_module("model", std::make_shared<Decoder>(options_));
  if (!options_.tied) head_ = register_module("lm_head", Linear(options_.width, options_.vocabulary, false));
}

LlamaImpl::~LlamaImpl() = default;

at::Tensor LlamaImpl::forward(const at::Tensor& tokens, KeyValueCache* cache) {
  const std::int64_t length = tokens.size(1) + (cache == nullptr ? 0 : cache->length);
  if (length > options_.sequence) {
    throw UsageError(fmt::format("llama: a sequence of {} is longer than the model's {}", length, options_.sequence));
  }
  const at::Tensor x = decoder_->forward(tokens, options_.rotary, cache);
  const ModuleScope scope("lm_head");
  return head_ ? head_(x) : at::linear(x, decoder_->embedding());
}

at::Tensor LlamaImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  const at::Tensor logits = forward(tokens);
  return at::cross_entropy_loss(logits.to(at::kFloat).view({-1, logits.size(-1)}), targets.reshape(-1));
}

}  // namespace snug::models
