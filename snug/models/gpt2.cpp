#include "snug/models/gpt2.h"

#include <torch/types.h>

#include <memory>

#include "snug/base/module_scope.h"
#include "snug/models/attention.h"
#include "snug/models/module_path.h"
#include "snug/models/parameter.h"
#include "snug/models/row_parts.h"
#include "snug/ops/dropout.h"

namespace snug::models {
namespace {

class Gpt2Block : public DecoderBlock {
 public:
  explicit Gpt2Block(const Gpt2Options& o)
      : head_width_(o.width / o.heads),
        attention_dropout_(o.attention_dropout),
        residual_dropout_(o.residual_dropout),
        attention_scope_(o.layout == Gpt2Layout::Flat ? "attention" : "attn"),
        query_key_value_(linear(o, o.width, 3 * o.width, kInitialDeviation)),
        output_(linear(o, o.width, o.width, residual_deviation(o.layers))),
        up_(linear(o, o.width, o.inner_width, kInitialDeviation)),
        down_(linear(o, o.inner_width, o.width, residual_deviation(o.layers))),
        attention_norm_(o.width, o.norm_epsilon),
        feed_forward_norm_(o.width, o.norm_epsilon) {
    if (o.layout == Gpt2Layout::Flat) {
      register_module("qkv", query_key_value_);
      register_module("projection", output_);
      register_module("up", up_);
      register_module("down", down_);
      register_module("attention_norm", attention_norm_);
      register_module("mlp_norm", feed_forward_norm_);
    } else {
      register_module("ln_1", attention_norm_);
      register_at(*this, "attn.c_attn", query_key_value_.ptr());
      register_at(*this, "attn.c_proj", output_.ptr());
      register_module("ln_2", feed_forward_norm_);
      register_at(*this, "mlp.c_fc", up_.ptr());
      register_at(*this, "mlp.c_proj", down_.ptr());
    }
  }

  at::Tensor forward(at::Tensor x, const BlockInput& input) override {
    x = x + attention(x, input);
    return x + feed_forward(x, input.feed_forward_rows);
  }

 private:
  static Linear linear(const Gpt2Options& o, std::int64_t in, std::int64_t out, double deviation) {
    const auto layout = o.layout == Gpt2Layout::Flat ? WeightLayout::OutIn : WeightLayout::InOut;
    return Linear(in, out, true, deviation, layout);
  }

  at::Tensor attention(const at::Tensor& x, const BlockInput& input) {
    const ModuleScope scope(attention_scope_);
    const at::Tensor all = query_key_value_(query_key_value_->enter(attention_norm_(x)));
    const auto parts = all.split(all.size(2) / 3, 2);
    // In the order that the plans of the small GPT have them.
    const at::Tensor value = split_heads(parts[2], head_width_), key = split_heads(parts[1], head_width_);
    const at::Tensor query = split_heads(parts[0], head_width_);
    const double dropout = is_training() ? attention_dropout_ : 0.0;
    at::Tensor attended;
    {
      const auto random = dropout > 0 ? query_key_value_->random_inside() : nullptr;
      attended = attend(query, key, value, input, dropout);
    }
    return residual(output_, output_(attended));
  }

  /// What a part of the block adds, some of it dropped.
  at::Tensor residual(Linear& made_by, const at::Tensor& y) {
    if (!is_training() || residual_dropout_ == 0) return y;
    const auto random = made_by->random_outside();
    return ops::dropout(y, residual_dropout_);
  }

  at::Tensor feed_forward(const at::Tensor& x, std::int64_t rows) {
    const ModuleScope scope("mlp");
    const at::Tensor y = in_parts(up_->enter(feed_forward_norm_(x)), rows, [this](const at::Tensor& part) {
      return down_->product_after({.x = up_(part), .f = ops::Activation::GeluTanh});
    });
    return residual(down_, down_->leave(y));
  }

  std::int64_t head_width_;
  double attention_dropout_, residual_dropout_;
  const char* attention_scope_;
  Linear query_key_value_, output_, up_, down_;
  LayerNorm attention_norm_, feed_forward_norm_;
};

DecoderParts parts_of(const Gpt2Options& o) {
  const bool flat = o.layout == Gpt2Layout::Flat;
  const char* const family = flat ? "gpt" : "gpt2";
  check_heads(family, o.width, o.heads);
  DecoderParts parts{
      .family = family,
      .blocks_scope = flat ? "blocks" : "h",
      .sequence = o.sequence,
      .loss = o.loss,
      .tokens = Embedding(o.vocabulary, o.width),
      .positions = LearnedPositions{.table = Embedding(o.sequence, o.width), .dropout = o.embedding_dropout},
      .norm = LayerNorm(o.width, o.norm_epsilon)};
  for (std::int64_t i = 0; i < o.layers; ++i) parts.blocks.push_back(std::make_shared<Gpt2Block>(o));
  return parts;
}

}  // namespace

Gpt2Impl::Gpt2Impl(const Gpt2Options& options) : CausalLmImpl(parts_of(options)), options_(options) {
  const Embedding positions = std::get<LearnedPositions>(parts().positions).table;
  const auto norm = std::get<LayerNorm>(parts().norm).ptr();
  if (options_.layout == Gpt2Layout::Flat) {
    register_parameter("token_embedding", parts().tokens->weight);
    register_parameter("position_embedding", positions->weight);
    register_blocks("blocks");
    register_module("final_norm", norm);
  } else {
    register_at(*this, "transformer.wte", parts().tokens.ptr());
    register_at(*this, "transformer.wpe", positions.ptr());
    register_blocks("transformer.h");
    register_at(*this, "transformer.ln_f", norm);
  }
}

std::vector<NamedLayout> Gpt2Impl::layouts() const {
  if (options_.layout == Gpt2Layout::Flat)
    return {{"qkv", Columns{.pieces = 3}}, {"projection", Rows{}}, {"up", Columns{}}, {"down", Rows{}}};
  return {
      {"attn.c_attn", Columns{.pieces = 3}}, {"attn.c_proj", Rows{}}, {"mlp.c_fc", Columns{}}, {"mlp.c_proj", Rows{}}};
}

}  // namespace snug::models
