#pragma once

#include <torch/nn/module.h>

#include <cstdint>

#include "snug/models/attention.h"
#include "snug/models/key_value_cache.h"
#include "snug/models/rotary.h"

namespace snug::models {

/// What the attention of a block is told beside its input.
struct AttentionInput {
  RotaryTable rotary{};                   ///< undefined where positions are learned
  at::Tensor mask{};                      ///< as that of DocumentRows; undefined: a token sees those before it
  KeyValueCache::Layer* cache = nullptr;  ///< of this block; null: none
  std::int64_t seen = 0;                  ///< positions that it holds
  AttentionMethod method = AttentionMethod::LibTorch;
};

/// One block of a decoder: attention and a feed-forward part.
class DecoderBlock : public torch::nn::Module {
 public:
  /// x (batch, sequence, width) -> the same
  virtual at::Tensor forward(at::Tensor x, const AttentionInput& input) = 0;
};

/// What the queries of a block, (batch, heads, positions, width), attend to: keys and values, put behind those of the
/// cache, if any. (batch, positions, heads * width). `dropout` as that of causal_attention.
at::Tensor attend(const at::Tensor& query, at::Tensor key, at::Tensor value, const AttentionInput& input,
                  double dropout);

}  // namespace snug::models
