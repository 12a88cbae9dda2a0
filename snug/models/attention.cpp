#include "snug/models/attention.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <optional>

#include "snug/base/errors.h"
#include "snug/ops/attention.h"

namespace snug::models {

void check_heads(std::string_view model, std::int64_t width, std::int64_t heads) {
  if (heads < 1 || width % heads != 0) {
    throw UsageError(fmt::format("{}: a width of {} is not a multiple of {} heads; choose other heads or another width",
                                 model, width, heads));
  }
}

at::Tensor split_heads(const at::Tensor& x, std::int64_t width) { return x.unflatten(2, {-1, width}).transpose(1, 2); }

at::Tensor merge_heads(const at::Tensor& x) { return x.transpose(1, 2).flatten(2); }

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, double dropout,
                            AttentionMethod method) {
  const std::int64_t rows = query.size(2), columns = key.size(2);
  // A single query behind all keys needs no mask, several behind some that came before need one of their own.
  std::optional<at::Tensor> mask;
  if (rows != columns && rows > 1) {
    mask = at::ones({rows, columns}, query.options().dtype(at::kBool)).tril(columns - rows);
  }
  if (method == AttentionMethod::Products && !mask && dropout == 0) {
    return ops::attention(query, key, value, rows == columns ? ops::AttentionMask::Causal : ops::AttentionMask::None);
  }
  return at::scaled_dot_product_attention(query, key, value, mask, dropout, /*is_causal=*/rows == columns,
                                          /*scale=*/std::nullopt, /*enable_gqa=*/query.size(1) != key.size(1));
}

SelfAttentionImpl::SelfAttentionImpl(std::int64_t width, std::int64_t heads, double dropout)
    : head_width_(width / heads),
      dropout_(dropout),
      query_(register_module("query", Linear(width, width, true))),
      key_(register_module("key", Linear(width, width, true))),
      value_(register_module("value", Linear(width, width, true))) {}

at::Tensor SelfAttentionImpl::forward(const at::Tensor& x, const at::Tensor& mask) {
  const at::Tensor in = query_->enter(x);
  const auto heads = [&](Linear& projection) { return split_heads(projection(in), head_width_); };
  const at::Tensor query = heads(query_), key = heads(key_), value = heads(value_);
  const std::optional<at::Tensor> given = mask.defined() ? std::optional(mask) : std::nullopt;
  const double dropout = is_training() ? dropout_ : 0;
  const auto random = dropout > 0 ? query_->random_inside() : nullptr;
  return merge_heads(at::scaled_dot_product_attention(query, key, value, given, dropout));
}

}  // namespace snug::models
