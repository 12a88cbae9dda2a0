#include "snug/models/bert.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <utility>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/models/attention.h"
#include "snug/models/embedding.h"
#include "snug/models/layer_norm.h"
#include "snug/models/parameter.h"
#include "snug/ops/dropout.h"

namespace snug::models {
namespace {

/// The end of both parts of a layer: what the part made is added to its input, and the sum is normalized.
class OutputImpl : public torch::nn::Module {
 public:
  OutputImpl(std::int64_t in, const BertOptions& o)
      : dropout_(o.dropout),
        dense_(register_module("dense", Linear(in, o.width, true))),
        norm_(register_module("LayerNorm", LayerNorm(o.width, o.norm_epsilon))) {}

  at::Tensor forward(const at::Tensor& made, const at::Tensor& input) {
    return norm_(ops::dropout(dense_(made), is_training() ? dropout_ : 0) + input);
  }

 private:
  double dropout_;
  Linear dense_;
  LayerNorm norm_;
};
TORCH_MODULE(Output);

class BertAttentionImpl : public torch::nn::Module {
 public:
  explicit BertAttentionImpl(const BertOptions& o)
      : self_(register_module("self", SelfAttention(o.width, o.heads, o.attention_dropout))),
        output_(register_module("output", Output(o.width, o))) {}

  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask) {
    const ModuleScope scope("attention");
    return output_(self_(x, mask), x);
  }

 private:
  SelfAttention self_;
  Output output_;
};
TORCH_MODULE(BertAttention);

class BertLayerImpl : public torch::nn::Module {
 public:
  explicit BertLayerImpl(const BertOptions& o)
      : attention_(register_module("attention", BertAttention(o))),
        up_(register_module("intermediate", Dense(o.width, o.inner_width))),
        down_(register_module("output", Output(o.inner_width, o))) {}

  at::Tensor forward(at::Tensor x, const at::Tensor& mask) {
    x = attention_(x, mask);
    at::Tensor inner;
    {
      const ModuleScope scope("intermediate");
      inner = at::gelu(up_(x));
    }
    const ModuleScope scope("output");
    return down_(inner, x);
  }

 private:
  BertAttention attention_;
  Dense up_;
  Output down_;
};
TORCH_MODULE(BertLayer);

}  // namespace

// Members of a class that the header declares, so not in the anonymous namespace.

/// cls.predictions.transform
class BertTransformImpl : public torch::nn::Module {
 public:
  explicit BertTransformImpl(const BertOptions& o)
      : dense_(register_module("dense", Linear(o.width, o.width, true))),
        norm_(register_module("LayerNorm", LayerNorm(o.width, o.norm_epsilon))) {}

  at::Tensor forward(const at::Tensor& x) { return norm_(at::gelu(dense_(x))); }

 private:
  Linear dense_;
  LayerNorm norm_;
};
TORCH_MODULE(BertTransform);

/// cls.predictions
class BertPredictionsImpl : public torch::nn::Module {
 public:
  explicit BertPredictionsImpl(const BertOptions& o)
      : bias_(register_parameter("bias", constant_parameter({o.vocabulary}, 0))),
        transform_(register_module("transform", BertTransform(o))) {}

  at::Tensor transformed(const at::Tensor& x) { return transform_(x); }
  [[nodiscard]] const at::Tensor& bias() const { return bias_; }

 private:
  at::Tensor bias_;
  BertTransform transform_;
};
TORCH_MODULE(BertPredictions);

namespace {

void check(const BertOptions& o) {
  check_heads("bert", o.width, o.heads);
  if (o.padding < 0 || o.padding >= o.vocabulary) {
    throw UsageError(fmt::format("bert: the padding is token {} of a vocabulary of {}; write one that is in it",
                                 o.padding, o.vocabulary));
  }
}

void check(const BertInput& input, const BertOptions& o) {
  if (input.tokens.size(1) > o.sequence) {
    throw UsageError(
        fmt::format("bert: a sequence of {} is longer than the model's {}; cut it", input.tokens.size(1), o.sequence));
  }
  const auto as_tokens = [&](const at::Tensor& t, const char* what) {
    if (!t.defined() || t.sizes() == input.tokens.sizes()) return;
    throw UsageError(fmt::format("bert: {} of {} for tokens of {}; make them of one shape", what,
                                 fmt::join(t.sizes(), "x"), fmt::join(input.tokens.sizes(), "x")));
  };
  as_tokens(input.token_types, "token types");
  as_tokens(input.mask, "a mask");
}

}  // namespace

class BertImpl::Embeddings : public torch::nn::Module {
 public:
  explicit Embeddings(const BertOptions& o)
      : padding_(o.padding),
        dropout_(o.dropout),
        words_(register_module("word_embeddings", Embedding(o.vocabulary, o.width))),
        positions_(register_module("position_embeddings", Embedding(o.sequence, o.width))),
        types_(register_module("token_type_embeddings", Embedding(o.token_types, o.width))),
        norm_(register_module("LayerNorm", LayerNorm(o.width, o.norm_epsilon))) {
    const at::NoGradGuard no_grad;
    // A parameter of shapes only is expanded, and has no row to write.
    if (words_->weight.is_contiguous()) words_->weight.select(0, padding_).zero_();
  }

  at::Tensor forward(const BertInput& input) {
    const ModuleScope scope("embeddings");
    const at::Tensor types = input.token_types.defined() ? types_(input.token_types) : types_->weight.select(0, 0);
    at::Tensor x = at::embedding(words_->weight, input.tokens, padding_) + types;
    x = x + positions_->weight.narrow(0, 0, input.tokens.size(1));
    return ops::dropout(norm_(x), is_training() ? dropout_ : 0);
  }

  [[nodiscard]] const at::Tensor& words() const { return words_->weight; }

 private:
  std::int64_t padding_;
  double dropout_;
  Embedding words_, positions_, types_;
  LayerNorm norm_;
};

class BertImpl::Encoder : public torch::nn::Module {
 public:
  explicit Encoder(const BertOptions& o) {
    for (std::int64_t i = 0; i < o.layers; ++i) layers_->push_back(BertLayer(o));
    register_module("layer", layers_);
  }

  at::Tensor forward(at::Tensor x, const at::Tensor& mask) {
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      const ModuleScope scope(fmt::format("layer.{}", i));
      x = layers_->ptr<BertLayerImpl>(i)->forward(std::move(x), mask);
    }
    return x;
  }

 private:
  torch::nn::ModuleList layers_;
};

BertImpl::BertImpl(const BertOptions& options, BertPooler pooler) : options_(options), pooler_(nullptr) {
  check(options_);
  embeddings_ = register_module("embeddings", std::make_shared<Embeddings>(options_));
  encoder_ = register_module("encoder", std::make_shared<Encoder>(options_));
  if (pooler == BertPooler::OfFirstToken) pooler_ = register_module("pooler", Dense(options_.width, options_.width));
}

BertImpl::~BertImpl() = default;

at::Tensor BertImpl::forward(const BertInput& input) {
  check(input, options_);
  at::Tensor mask;
  if (input.mask.defined()) mask = input.mask.to(at::kBool).unsqueeze(1).unsqueeze(1);  // the same for heads and rows
  return encoder_->forward(embeddings_->forward(input), mask);
}

at::Tensor BertImpl::pooled(const at::Tensor& hidden) {
  if (!pooler_) throw UsageError("bert: this encoder was made without a pooler; make it with one");
  const ModuleScope scope("pooler");
  return at::tanh(pooler_(hidden.select(1, 0)));
}

const at::Tensor& BertImpl::token_embedding() const { return embeddings_->words(); }

class BertMaskedLmImpl::Head : public torch::nn::Module {
 public:
  explicit Head(const BertOptions& o) : predictions_(register_module("predictions", BertPredictions(o))) {}

  at::Tensor logits(const at::Tensor& x, const at::Tensor& embedding) {
    const ModuleScope scope("cls");
    return at::linear(predictions_->transformed(x), embedding, predictions_->bias());
  }

  at::Tensor tiled_loss(const at::Tensor& x, const at::Tensor& embedding, const at::Tensor& targets,
                        const TiledLoss& tile) {
    const ModuleScope scope("cls");
    return ops::linear_cross_entropy(predictions_->transformed(x), embedding, targets,
                                     {.tile = tile, .bias = predictions_->bias()});
  }

 private:
  BertPredictions predictions_;
};

BertMaskedLmImpl::BertMaskedLmImpl(const BertOptions& options)
    : encoder_(register_module("bert", Bert(options, BertPooler::None))),
      head_(register_module("cls", std::make_shared<Head>(options))) {}

BertMaskedLmImpl::~BertMaskedLmImpl() = default;

at::Tensor BertMaskedLmImpl::forward(const BertInput& input) {
  return head_->logits(encoder_(input), encoder_->token_embedding());
}

at::Tensor BertMaskedLmImpl::loss(const BertInput& input, const at::Tensor& targets) {
  if (const auto* const tile = std::get_if<TiledLoss>(&encoder_->options().loss)) {
    return head_->tiled_loss(encoder_(input), encoder_->token_embedding(), targets, *tile);
  }
  return plain_loss(forward(input), targets);
}

BertClassifierImpl::BertClassifierImpl(const BertOptions& options, std::int64_t classes)
    : dropout_(options.dropout),
      encoder_(register_module("bert", Bert(options, BertPooler::OfFirstToken))),
      classifier_(register_module("classifier", Linear(options.width, classes, true))) {}

at::Tensor BertClassifierImpl::forward(const BertInput& input) {
  const at::Tensor text = ops::dropout(encoder_->pooled(encoder_(input)), is_training() ? dropout_ : 0);
  const ModuleScope scope("classifier");
  return classifier_(text);
}

at::Tensor BertClassifierImpl::loss(const BertInput& input, const at::Tensor& labels) {
  return at::cross_entropy_loss(forward(input).to(at::kFloat), labels);
}

}  // namespace snug::models
