#include "snug/models/llama.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <memory>

#include "snug/base/errors.h"
#include "snug/base/module_scope.h"
#include "snug/models/attention.h"
#include "snug/models/module_path.h"
#include "snug/models/row_parts.h"

namespace snug::models {
namespace {

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaOptions& o)
      : head_width_(o.rotary.width),
        query_(register_module("q_proj", Linear(o.width, o.heads * o.rotary.width, false))),
        key_(register_module("k_proj", Linear(o.width, o.key_heads * o.rotary.width, false))),
        value_(register_module("v_proj", Linear(o.width, o.key_heads * o.rotary.width, false))),
        output_(register_module("o_proj", Linear(o.heads * o.rotary.width, o.width, false))) {}

  at::Tensor forward(const at::Tensor& x, const BlockInput& input) {
    const ModuleScope scope("self_attn");
    const at::Tensor in = query_->enter(x);
    const at::Tensor query = rotate(split_heads(query_(in), head_width_), input.rotary);
    const at::Tensor key = rotate(split_heads(key_(in), head_width_), input.rotary);
    return output_(attend(query, key, split_heads(value_(in), head_width_), input, 0.0));
  }

 private:
  std::int64_t head_width_;
  Linear query_, key_, value_, output_;
};
TORCH_MODULE(LlamaAttention);

class LlamaFeedForwardImpl : public torch::nn::Module {
 public:
  explicit LlamaFeedForwardImpl(const LlamaOptions& o)
      : gate_(register_module("gate_proj", Linear(o.width, o.inner_width, false))),
        up_(register_module("up_proj", Linear(o.width, o.inner_width, false))),
        down_(register_module("down_proj", Linear(o.inner_width, o.width, false))) {}

  /// So many rows at a time: see in_parts().
  at::Tensor forward(const at::Tensor& x, std::int64_t rows) {
    const ModuleScope scope("mlp");
    return down_->leave(in_parts(gate_->enter(x), rows, [this](const at::Tensor& part) {
      const at::Tensor gate = gate_(part);
      return down_->product_after({.x = gate, .f = ops::Activation::Silu, .factor = up_(part)});
    }));
  }

 private:
  Linear gate_, up_, down_;
};
TORCH_MODULE(LlamaFeedForward);

class LlamaBlock : public DecoderBlock {
 public:
  explicit LlamaBlock(const LlamaOptions& o)
      : attention_(register_module("self_attn", LlamaAttention(o))),
        feed_forward_(register_module("mlp", LlamaFeedForward(o))),
        attention_norm_(register_module("input_layernorm", RmsNorm(o.width, o.norm_epsilon))),
        feed_forward_norm_(register_module("post_attention_layernorm", RmsNorm(o.width, o.norm_epsilon))) {}

  at::Tensor forward(at::Tensor x, const BlockInput& input) override {
    const auto [before, to_attend] = attention_norm_->of_stream(x);
    const auto [between, to_feed] = feed_forward_norm_->of_stream(before, attention_(to_attend, input));
    return between + feed_forward_(to_feed, input.feed_forward_rows);
  }

 private:
  LlamaAttention attention_;
  LlamaFeedForward feed_forward_;
  RmsNorm attention_norm_, feed_forward_norm_;
};

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

DecoderParts parts_of(const LlamaOptions& o) {
  check(o);
  DecoderParts parts{.family = "llama",
                     .blocks_scope = "layers",
                     .sequence = o.sequence,
                     .loss = o.loss,
                     .tokens = Embedding(o.vocabulary, o.width),
                     .positions = o.rotary,
                     .norm = RmsNorm(o.width, o.norm_epsilon)};
  for (std::int64_t i = 0; i < o.layers; ++i) parts.blocks.push_back(std::make_shared<LlamaBlock>(o));
  if (!o.tied) parts.head = Linear(o.width, o.vocabulary, false);
  return parts;
}

}  // namespace

LlamaImpl::LlamaImpl(const LlamaOptions& options) : CausalLmImpl(parts_of(options)), options_(options) {
  register_at(*this, "model.embed_tokens", parts().tokens.ptr());
  register_blocks("model.layers");
  register_at(*this, "model.norm", std::get<RmsNorm>(parts().norm).ptr());
  if (parts().head) register_module("lm_head", parts().head);
}

std::vector<NamedLayout> LlamaImpl::layouts() const {
  return {{"q_proj", Columns{}},    {"k_proj", Columns{}},  {"v_proj", Columns{}}, {"o_proj", Rows{}},
          {"gate_proj", Columns{}}, {"up_proj", Columns{}}, {"down_proj", Rows{}}};
}

}  // namespace snug::models
