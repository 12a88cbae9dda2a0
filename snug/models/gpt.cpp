#include "snug/models/gpt.h"

#include <fmt/format.h>
#include <torch/nn/functional.h>

#include <tuple>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/models/parameter.h"

namespace snug::models {
namespace {

at::Tensor normal(at::IntArrayRef sizes) { return torch::randn(sizes).mul_(kInitialDeviation); }

torch::nn::LayerNorm layer_norm(std::int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

}  // namespace

GptBlockImpl::GptBlockImpl(const GptOptions& options)
    : heads_(options.heads),
      dropout_(options.dropout),
      qkv_(register_module("qkv", Linear(options.width, 3 * options.width, true, kInitialDeviation))),
      projection_(register_module("projection",
                                  Linear(options.width, options.width, true, residual_deviation(options.blocks)))),
      up_(register_module("up", Linear(options.width, 4 * options.width, true, kInitialDeviation))),
      down_(
          register_module("down", Linear(4 * options.width, options.width, true, residual_deviation(options.blocks)))),
      attention_norm_(register_module("attention_norm", layer_norm(options.width))),
      mlp_norm_(register_module("mlp_norm", layer_norm(options.width))) {}

at::Tensor GptBlockImpl::forward(at::Tensor x) {
  const std::int64_t batch = x.size(0), sequence = x.size(1), width = x.size(2);
  const auto split_heads = [&](const at::Tensor& t) {
    return t.view({batch, sequence, heads_, width / heads_})
        .transpose(1, 2);  // (batch, heads, sequence, width / heads)
  };
  {
    const ModuleScope scope("attention");
    const auto qkv = qkv_(attention_norm_(x)).split(width, 2);
    const at::Tensor attended = at::scaled_dot_product_attention(split_heads(qkv[0]), split_heads(qkv[1]),
                                                                 split_heads(qkv[2]), {}, 0.0, /*is_causal=*/true)
                                    .transpose(1, 2)
                                    .reshape({batch, sequence, width});
    x = x + at::dropout(projection_(attended), dropout_, is_training());
  }
  const ModuleScope scope("mlp");
  const at::Tensor hidden = at::gelu(up_(mlp_norm_(x)), "tanh");
  return x + at::dropout(down_(hidden), dropout_, is_training());
}

GptImpl::GptImpl(const GptOptions& options) : options_(options), blocks_(), final_norm_(nullptr) {
  if (options.heads < 1 || options.width % options.heads != 0) {
    throw UsageError(fmt::format("gpt: width {} is not a multiple of {} heads", options.width, options.heads));
  }
  token_embedding_ = register_parameter("token_embedding", normal({options.vocabulary, options.width}));
  position_embedding_ = register_parameter("position_embedding", normal({options.sequence, options.width}));
  for (std::int64_t i = 0; i < options.blocks; ++i) blocks_->push_back(GptBlock(options));
  register_module("blocks", blocks_);
  final_norm_ = register_module("final_norm", layer_norm(options.width));
}

at::Tensor GptImpl::forward(const at::Tensor& tokens) {
  const std::int64_t length = tokens.size(1);
  if (length > position_embedding_.size(0)) {
    throw UsageError(
        fmt::format("gpt: a sequence of {} is longer than the model's {}", length, position_embedding_.size(0)));
  }
  at::Tensor x = at::embedding(token_embedding_, tokens) + position_embedding_.narrow(0, 0, length);
  x = at::dropout(x, options_.dropout, is_training());
  int number = 0;
  for (const auto& block : *blocks_) {
    const ModuleScope scope(fmt::format("blocks.{}", number++));
    x = block->as<GptBlock>()->forward(std::move(x));
  }
  return at::linear(final_norm_(x), token_embedding_);
}

at::Tensor GptImpl::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  const at::Tensor logits = forward(tokens);
  return at::cross_entropy_loss(logits.to(at::kFloat).view({-1, logits.size(-1)}), targets.reshape(-1));
}

}  // namespace snug::models
