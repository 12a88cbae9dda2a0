#include "snug/models/vit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <utility>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/models/attention.h"
#include "snug/models/dense.h"
#include "snug/models/layer_norm.h"
#include "snug/models/parameter.h"
#include "snug/ops/dropout.h"

namespace snug::models {

// Members of a class that the header declares, so not in the anonymous namespace.

/// A vector for each patch: a convolution whose steps are as long as its kernel.
class VitProjectionImpl : public torch::nn::Module {
 public:
  explicit VitProjectionImpl(const VitOptions& o)
      : weight_(
            register_parameter("weight", normal_parameter({o.width, o.channels, o.patch, o.patch}, kInitialDeviation))),
        bias_(register_parameter("bias", constant_parameter({o.width}, 0))) {}

  at::Tensor forward(const at::Tensor& images) {
    return at::conv2d(images, weight_, bias_, /*stride=*/weight_.sizes().slice(2));
  }

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(VitProjection);

class VitPatchesImpl : public torch::nn::Module {
 public:
  explicit VitPatchesImpl(const VitOptions& o) : projection_(register_module("projection", VitProjection(o))) {}

  /// -> (batch, patches, width)
  at::Tensor forward(const at::Tensor& images) { return projection_(images).flatten(2).transpose(1, 2); }

 private:
  VitProjection projection_;
};
TORCH_MODULE(VitPatches);

class VitEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit VitEmbeddingsImpl(const VitOptions& o)
      : dropout_(o.dropout),
        class_token_(register_parameter("cls_token", normal_parameter({1, 1, o.width}, kInitialDeviation))),
        positions_(
            register_parameter("position_embeddings", normal_parameter({1, positions(o), o.width}, kInitialDeviation))),
        patches_(register_module("patch_embeddings", VitPatches(o))) {}

  at::Tensor forward(const at::Tensor& images) {
    const ModuleScope scope("embeddings");
    const at::Tensor first = class_token_.expand({images.size(0), -1, -1});
    return ops::dropout(at::cat({first, patches_(images)}, 1) + positions_, is_training() ? dropout_ : 0);
  }

 private:
  static std::int64_t positions(const VitOptions& o) { return 1 + (o.image / o.patch) * (o.image / o.patch); }

  double dropout_;
  at::Tensor class_token_, positions_;
  VitPatches patches_;
};
TORCH_MODULE(VitEmbeddings);

namespace {

class VitAttentionImpl : public torch::nn::Module {
 public:
  explicit VitAttentionImpl(const VitOptions& o)
      : attention_(register_module("attention", SelfAttention(o.width, o.heads, o.attention_dropout))),
        output_(register_module("output", Dense(o.width, o.width))) {}

  at::Tensor forward(const at::Tensor& x) { return output_(attention_(x)); }

 private:
  SelfAttention attention_;
  Dense output_;
};
TORCH_MODULE(VitAttention);

class VitLayerImpl : public torch::nn::Module {
 public:
  explicit VitLayerImpl(const VitOptions& o)
      : dropout_(o.dropout),
        attention_(register_module("attention", VitAttention(o))),
        up_(register_module("intermediate", Dense(o.width, o.inner_width))),
        down_(register_module("output", Dense(o.inner_width, o.width))),
        attention_norm_(register_module("layernorm_before", LayerNorm(o.width, o.norm_epsilon))),
        feed_forward_norm_(register_module("layernorm_after", LayerNorm(o.width, o.norm_epsilon))) {}

  at::Tensor forward(at::Tensor x) {
    {
      const ModuleScope scope("attention");
      x = x + ops::dropout(attention_(attention_norm_(x)), is_training() ? dropout_ : 0);
    }
    at::Tensor inner;
    {
      const ModuleScope scope("intermediate");
      inner = at::gelu(up_(feed_forward_norm_(x)));
    }
    const ModuleScope scope("output");
    return x + ops::dropout(down_(inner), is_training() ? dropout_ : 0);
  }

 private:
  double dropout_;
  VitAttention attention_;
  Dense up_, down_;
  LayerNorm attention_norm_, feed_forward_norm_;
};
TORCH_MODULE(VitLayer);

}  // namespace

class VitEncoderImpl : public torch::nn::Module {
 public:
  explicit VitEncoderImpl(const VitOptions& o) {
    for (std::int64_t i = 0; i < o.layers; ++i) layers_->push_back(VitLayer(o));
    register_module("layer", layers_);
  }

  at::Tensor forward(at::Tensor x) {
    for (std::size_t i = 0; i < layers_->size(); ++i) {
      const ModuleScope scope(fmt::format("layer.{}", i));
      x = layers_->ptr<VitLayerImpl>(i)->forward(std::move(x));
    }
    return x;
  }

 private:
  torch::nn::ModuleList layers_;
};
TORCH_MODULE(VitEncoder);

namespace {

void check(const VitOptions& o) {
  check_heads("vit", o.width, o.heads);
  if (o.patch < 1 || o.image < 1 || o.image % o.patch != 0) {
    throw UsageError(fmt::format("vit: images of {0}x{0} are not made of patches of {1}x{1}; choose a multiple of {1}",
                                 o.image, o.patch));
  }
}

}  // namespace

class VitImpl::Transformer : public torch::nn::Module {
 public:
  explicit Transformer(const VitOptions& o)
      : embeddings_(register_module("embeddings", VitEmbeddings(o))),
        encoder_(register_module("encoder", VitEncoder(o))),
        norm_(register_module("layernorm", LayerNorm(o.width, o.norm_epsilon))) {}

  at::Tensor forward(const at::Tensor& images) { return norm_(encoder_(embeddings_(images))); }

 private:
  VitEmbeddings embeddings_;
  VitEncoder encoder_;
  LayerNorm norm_;
};

VitImpl::VitImpl(const VitOptions& options) : options_(options), classifier_(nullptr) {
  check(options_);
  transformer_ = register_module("vit", std::make_shared<Transformer>(options_));
  classifier_ = register_module("classifier", Linear(options_.width, options_.classes, true));
}

VitImpl::~VitImpl() = default;

at::Tensor VitImpl::forward(const at::Tensor& images) {
  const VitOptions& o = options_;
  if (images.dim() != 4 || images.sizes().slice(1) != at::IntArrayRef({o.channels, o.image, o.image})) {
    throw UsageError(fmt::format("vit: images of {} for a model of Nx{}x{}x{}; resize them, or make another model",
                                 fmt::join(images.sizes(), "x"), o.channels, o.image, o.image));
  }
  const at::Tensor x = transformer_->forward(images);
  const ModuleScope scope("classifier");
  return classifier_(x.select(1, 0));
}

at::Tensor VitImpl::loss(const at::Tensor& images, const at::Tensor& labels) {
  return at::cross_entropy_loss(forward(images).to(at::kFloat), labels);
}

}  // namespace snug::models
