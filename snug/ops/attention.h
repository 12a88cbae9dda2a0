#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace snug::ops {

/// Causal: row i of the queries sees keys 0 to i.
enum class AttentionMask : std::uint8_t { None, Causal };

/// softmax(query key^T / sqrt(width)) value, without dropout and other masks: (batch, heads, positions, width), of one
/// type. There may be several heads of queries to one of keys and values (grouped queries, Ainslie et al. 2023).
///
/// On CPUs, but in fp16, by whole matrix products over rows of several heads, a few MiB of probabilities at a time, in
/// both passes; what is kept are query, key, value and a number per row (Dao et al. 2022). Not the bits of
/// at::scaled_dot_product_attention: sums have another order, and scores are rounded to the inputs' type, as where
/// attention is written as two products and a softmax. Differentiable once. Elsewhere it is that operator.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, AttentionMask mask);

}  // namespace snug::ops
