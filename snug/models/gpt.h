#pragma once

#include <torch/nn/pimpl.h>

#include <cstdint>

#include "snug/models/gpt2.h"

namespace snug::models {

/// A small GPT: GPT-2 with parameters of flat names, a feed-forward part of four times the width, and one rate of
/// dropout for everything except attention, where it would rule out the fused kernels.
struct GptOptions {
  std::int64_t blocks = 6;
  std::int64_t width = 384;  ///< a multiple of heads
  std::int64_t heads = 6;
  std::int64_t sequence = 256;  ///< longest input
  std::int64_t vocabulary = 256;
  double dropout = 0.0;  ///< of the embedding and of both residual branches
  VocabularyLoss loss = PlainLoss{};
};

/// What it is as GPT-2.
Gpt2Options as_gpt2(const GptOptions& options);

class GptImpl : public Gpt2Impl {
 public:
  explicit GptImpl(const GptOptions& options) : Gpt2Impl(as_gpt2(options)) {}
};
TORCH_MODULE(Gpt);

}  // namespace snug::models
