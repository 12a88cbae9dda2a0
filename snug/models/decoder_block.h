#pragma once

#include <torch/nn/module.h>

#include <cstdint>

#include "snug/models/attention.h"
#include "snug/models/context_parts.h"
#include "snug/models/key_value_cache.h"
#include "snug/models/rotary.h"

namespace snug::models {

/// What a block is told beside its input.
struct BlockInput {
  RotaryTable rotary{};                   ///< undefined where positions are learned
  at::Tensor mask{};                      ///< as that of DocumentRows; undefined: a token sees those before it
  KeyValueCache::Layer* cache = nullptr;  ///< of this block; null: none
  std::int64_t seen = 0;                  ///< positions that it holds
  AttentionMethod method = AttentionMethod::LibTorch;
  std::int64_t feed_forward_rows = 0;  ///< see in_parts()
  Context context{};                   ///< of processes with a part of every sequence each
};

/// One block of a decoder: attention and a feed-forward part.
class DecoderBlock : public torch::nn::Module {
 public:
  /// x (batch, sequence, width) -> the same
  virtual at::Tensor forward(at::Tensor x, const BlockInput& input) = 0;
};

/// What the queries of a block, (batch, heads, positions, width), attend to: keys and values, put behind those of the
/// cache, if any. (batch, positions, heads * width). `dropout` as that of causal_attention.
at::Tensor attend(const at::Tensor& query, at::Tensor key, at::Tensor value, const BlockInput& input, double dropout);

}  // namespace snug::models
