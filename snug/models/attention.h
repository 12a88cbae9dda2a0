#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <string_view>

#include "snug/models/attention_method.h"
#include "snug/models/linear.h"

namespace snug::models {

/// Throws UsageError that begins with the name of the model unless the width is a multiple of the heads.
void check_heads(std::string_view model, std::int64_t width, std::int64_t heads);

/// (batch, sequence, heads * width) -> (batch, heads, sequence, width), a view, of as many heads as there are.
at::Tensor split_heads(const at::Tensor& x, std::int64_t width);
/// The other way round.
at::Tensor merge_heads(const at::Tensor& x);

/// Scaled dot-product attention (batch, heads, positions, width). The queries are of the last of the keys' positions,
/// and each attends to its own and those before it. There may be several heads of queries to one of keys (grouped
/// queries, Ainslie et al. 2023). `dropout` is of the attention probabilities; above 0 it rules out the fused kernels
/// on the CPU.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout,
                            AttentionMethod method = AttentionMethod::LibTorch);

/// What the encoders of transformers call self-attention: every position attends to every other; modules query, key and
/// value.
class SelfAttentionImpl : public torch::nn::Module {
 public:
  SelfAttentionImpl(std::int64_t width, std::int64_t heads, double dropout);

  /// x (batch, sequence, width) -> the same, before it is projected back. `mask` is bool and fits
  /// (batch, heads, sequence, sequence): true where a row may attend to a column. Undefined: everywhere.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& mask = {});

 private:
  std::int64_t head_width_;
  double dropout_;
  Linear query_, key_, value_;
};
TORCH_MODULE(SelfAttention);

}  // namespace snug::models
