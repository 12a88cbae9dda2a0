#pragma once

#include <ATen/core/Tensor.h>

#include "snug/ops/tensor_parallel.h"

namespace snug::ops {

/// Causal attention, softmax(query key^T / sqrt(width)) value, over sequences that are too long for one process: of 2 N
/// even pieces, piece `rank` and piece `2 N - 1 - rank` are in each of the N processes of the group, one behind the
/// other, so that all have as much to do. (batch, heads, positions, width), of one type; there may be several heads of
/// queries to one of keys and values (grouped queries, Ainslie et al. 2023).
///
/// Keys and values go from each process to the next one until all have seen all (ring attention: Liu et al. 2023,
/// arXiv:2310.01889), and in the backward pass once more, with their gradients: a process has those of two at a time.
/// What it makes of each is put together in fp32 by the logarithms of the sums (Milakov and Gimelshein 2018,
/// arXiv:1805.02867). What is kept between the passes are the own query, key, value and result, and a number for each
/// row. Under autocast in its type. Differentiable once. Throws UsageError for an odd number of positions.
at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const LayerGroup& group);

}  // namespace snug::ops
