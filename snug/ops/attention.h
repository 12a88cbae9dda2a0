#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace snug::ops {

/// Causal: row i of the queries sees keys 0 to i.
enum class AttentionMask : std::uint8_t { None, Causal };

/// at::scaled_dot_product_attention(query, key, value, is_causal), without other masks and dropout, bit for bit in the
/// forward pass: (batch, heads, positions, width), of one type, as many heads of each. Where LibTorch would take its
/// flash kernel for CPUs, the backward pass (Dao et al. 2022) is one of whole matrix products over rows of several
/// heads, a few MiB of probabilities at a time, that keeps query, key and value and not what came out, with sums in
/// another order than LibTorch's. Scores are rounded to the inputs' type, so that in bf16 the gradients of the queries
/// are about as exact as LibTorch's are of the keys. Differentiable once, as that one. Elsewhere it is LibTorch's own.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, AttentionMask mask);

}  // namespace snug::ops
