#include "snug/models/decoder_block.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <optional>

#include "snug/base/errors.h"
#include "snug/ops/ring_attention.h"

namespace snug::models {

at::Tensor attend(const at::Tensor& query, at::Tensor key, at::Tensor value, const BlockInput& input, double dropout) {
  if (input.context && input.context.method == ContextMethod::Ring) {
    if (dropout > 0) {
      throw UsageError(fmt::format(
          "context parallel: a ring has no dropout of attention, and it is {:g}; set it to 0, or attend by heads",
          dropout));
    }
    return merge_heads(ops::ring_attention(query, key, value, input.context.group));
  }
  if (input.context) {
    constexpr std::int64_t kHeads = 1, kPositions = 2;
    const auto whole = [&](const at::Tensor& x) {
      return ops::exchange_parts(x, kHeads, kPositions, input.context.group);
    };
    const at::Tensor attended = causal_attention(whole(query), whole(key), whole(value), dropout, input.method);
    return merge_heads(ops::exchange_parts(attended, kPositions, kHeads, input.context.group));
  }
  if (input.cache != nullptr) append(*input.cache, input.seen, key, value);
  if (!input.mask.defined()) return merge_heads(causal_attention(query, key, value, dropout, input.method));
  return merge_heads(at::scaled_dot_product_attention(query, key, value, input.mask, dropout, /*is_causal=*/false,
                                                      /*scale=*/std::nullopt,
                                                      /*enable_gqa=*/query.size(1) != key.size(1)));
}

}  // namespace snug::models
