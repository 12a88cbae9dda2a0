#include "snug/ops/attention.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/base/errors.h"
#include "snug/memory/parallel_for.h"
#include "snug/ops/cpu_kernels.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

// Of probabilities at once, and as much of their gradients.
constexpr Bytes kScoreBytes = 4_MiB;
constexpr std::int64_t kRowsAtOnce = 128, kRowsAThread = 8;

using Two = std::tuple<at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// Rows of the queries of some heads in one sequence.
struct Rows {
  std::int64_t sequence, head, heads, first, count;
  std::int64_t columns;  ///< that any of them sees

  /// Of (batch, heads, positions, ...).
  [[nodiscard]] at::Tensor of(const at::Tensor& t) const {
    return t.select(0, sequence).narrow(0, head, heads).narrow(1, first, count);
  }
  /// Of (heads, positions, width) of that sequence: what they see.
  [[nodiscard]] at::Tensor seen(const at::Tensor& t) const { return t.narrow(0, head, heads).narrow(1, 0, columns); }
};

/// Products are fast where matrices lie one behind the other.
at::Tensor dense(const at::Tensor& t) { return t.contiguous(); }

/// The products of all rows with all keys, a few rows at a time.
class Scores {
 public:
  Scores(const at::Tensor& query, const at::Tensor& key, bool is_causal)
      : query_(query), key_(key), is_causal_(is_causal) {
    rows_ = std::min(kRowsAtOnce, query.size(2));
    const std::int64_t bytes = rows_ * key.size(2) * key.element_size();  // of one head
    heads_ = std::clamp<std::int64_t>(kScoreBytes / std::max<std::int64_t>(bytes, 1), 1, query.size(1));
    room_ = at::empty({heads_ * rows_ * key.size(2)}, query.options());
  }

  /// What the heads of queries of one sequence have of keys or values, (heads, positions, width).
  [[nodiscard]] at::Tensor for_heads(const at::Tensor& keys, std::int64_t sequence) const {
    const at::Tensor t = keys.select(0, sequence);
    const std::int64_t group = query_.size(1) / t.size(0);
    return dense(t.unsqueeze(1).expand({t.size(0), group, t.size(1), t.size(2)})).flatten(0, 1);
  }
  /// The other way round: sums over the heads that share one.
  [[nodiscard]] at::Tensor of_groups(const at::Tensor& sums) const {
    if (query_.size(1) == key_.size(1)) return sums;
    return sums.unflatten(0, {key_.size(1), query_.size(1) / key_.size(1)}).sum(1);
  }

  /// Somewhere for as many numbers.
  [[nodiscard]] at::Tensor room() const { return at::empty_like(room_); }
  [[nodiscard]] static at::Tensor in_room(const at::Tensor& room, at::IntArrayRef sizes) {
    return room.narrow(0, 0, c10::multiply_integers(sizes)).view(sizes);
  }

  /// visit(rows, queries, keys, scores) of one sequence: (heads, rows, width), (heads, columns, width), and (heads,
  /// rows, columns), which may be written.
  template <typename Visit>
  void visit(std::int64_t sequence, const Visit& visit) const {
    const at::Tensor all_keys = for_heads(key_, sequence);
    const std::int64_t all_heads = query_.size(1), length = query_.size(2), keys = key_.size(2);
    for (std::int64_t head = 0; head < all_heads; head += heads_) {
      const std::int64_t heads = std::min(heads_, all_heads - head);
      for (std::int64_t first = 0; first < length; first += rows_) {
        const std::int64_t count = std::min(rows_, length - first);
        const Rows rows{sequence, head, heads, first, count, is_causal_ ? std::min(keys, first + count) : keys};
        at::Tensor scores = in_room(room_, {heads, count, rows.columns});
        const at::Tensor queries = dense(rows.of(query_)), seen = dense(rows.seen(all_keys));
        at::bmm_out(scores, queries, seen.transpose(1, 2));
        visit(rows, queries, seen, scores);
      }
    }
  }

  using Kernel = void (*)(c10::ScalarType type, const kernels::AttentionRows& rows, std::int64_t first,
                          std::int64_t last);
  /// `log_sums`: (batch, heads, positions).
  void call(Kernel kernel, const Rows& rows, const at::Tensor& scores, const at::Tensor& gradients,
            const at::Tensor& log_sums) const {
    const at::Tensor sums = rows.of(log_sums);
    const kernels::AttentionRows all{.scores = scores.data_ptr(),
                                     .gradients = gradients.defined() ? gradients.data_ptr() : nullptr,
                                     .log_sums = sums.data_ptr(),
                                     .log_sums_head = sums.stride(0),
                                     .log_sums_row = sums.stride(1),
                                     .rows = rows.count,
                                     .columns = rows.columns,
                                     .first_row = rows.first,
                                     .is_causal = is_causal_,
                                     .scale = 1 / std::sqrt(static_cast<double>(key_.size(3)))};
    memory::parallel_for(0, scores.size(0) * rows.count, kRowsAThread,
                         [&](std::int64_t from, std::int64_t to) { kernel(scores.scalar_type(), all, from, to); });
  }

 private:
  at::Tensor query_, key_, room_;
  std::int64_t rows_ = 0, heads_ = 0;  // at once
  bool is_causal_;
};

/// LibTorch's kernels are one operator, inside of which autocast does not round.
using NoAutocast = c10::impl::ExcludeDispatchKeyGuard;

Two forward_kernel_of_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                bool is_causal) {
  const NoAutocast no_autocast(c10::DispatchKey::AutocastCPU);
  const Scores all(query, key, is_causal);
  // Laid out for heads to be merged without a copy.
  const at::Tensor out =
      at::empty({query.size(0), query.size(2), query.size(1), query.size(3)}, query.options()).transpose(1, 2);
  const auto sums = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor log_sums = at::empty({query.size(0), query.size(1), query.size(2)}, query.options().dtype(sums));
  for (std::int64_t b = 0; b < query.size(0); ++b) {
    const at::Tensor values = all.for_heads(value, b);
    all.visit(b, [&](const Rows& rows, const at::Tensor&, const at::Tensor&, const at::Tensor& scores) {
      all.call(cpu_kernels().attention_probabilities, rows, scores, {}, log_sums);
      rows.of(out).copy_(at::bmm(scores, dense(rows.seen(values))));
    });
  }
  return {out, log_sums};
}

Three backward_kernel_of_attention(const at::Tensor& of_out, const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, const at::Tensor& log_sums, bool is_causal) {
  const NoAutocast no_autocast(c10::DispatchKey::AutocastCPU);
  const Scores all(query, key, is_causal);
  at::Tensor of_query = at::empty_like(query), of_key = at::empty_like(key), of_value = at::empty_like(value);
  const at::Tensor room = all.room();
  // Over groups of rows and of heads: in fp32, where they are the tensors' type.
  const at::Tensor key_sums =
      at::empty({query.size(1), key.size(2), key.size(3)}, query.options().dtype(log_sums.scalar_type()));
  const at::Tensor value_sums = at::empty_like(key_sums);
  for (std::int64_t b = 0; b < query.size(0); ++b) {
    const at::Tensor values = all.for_heads(value, b);
    key_sums.zero_();
    value_sums.zero_();
    all.visit(b, [&](const Rows& rows, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& scores) {
      at::Tensor gradients = Scores::in_room(room, scores.sizes());
      const at::Tensor of_rows = dense(rows.of(of_out));
      at::bmm_out(gradients, of_rows, dense(rows.seen(values)).transpose(1, 2));
      all.call(cpu_kernels().attention_gradients, rows, scores, gradients, log_sums);
      rows.of(of_query).copy_(at::bmm(gradients, keys));
      rows.seen(key_sums).add_(at::bmm(gradients.transpose(1, 2), queries));
      rows.seen(value_sums).add_(at::bmm(scores.transpose(1, 2), of_rows));
    });
    of_key[b].copy_(all.of_groups(key_sums));
    of_value[b].copy_(all.of_groups(value_sums));
  }
  return {of_query, of_key, of_value};
}

using Forward = decltype(forward_kernel_of_attention);
using Backward = decltype(backward_kernel_of_attention);

class Attention : public torch::autograd::Function<Attention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, bool is_causal) {
    static const auto op = operator_of<Forward>("snug::attention");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [out, log_sums] = op.call(query, key, value, is_causal);
    context->save_for_backward({query, key, value, log_sums});
    context->saved_data["is_causal"] = is_causal;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    only_once("attention");
    static const auto op = operator_of<Backward>("snug::attention_backward");
    const auto saved = context->get_saved_variables();
    const auto [of_query, of_key, of_value] =
        op.call(gradients[0], saved[0], saved[1], saved[2], saved[3], context->saved_data["is_causal"].toBool());
    return {of_query, of_key, of_value, {}};
  }
};

/// In fp16 scores may be too large.
bool has_kernel_of_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const auto fits = [&](const at::Tensor& t) {
    return t.is_cpu() && t.dim() == 4 && t.is_floating_point() && t.scalar_type() != at::kHalf &&
           t.scalar_type() == query.scalar_type() && t.size(0) == query.size(0) && t.size(3) == query.size(3) &&
           t.numel() > 0;
  };
  return fits(query) && fits(key) && fits(value) && key.sizes() == value.sizes() && query.size(1) % key.size(1) == 0;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("attention(Tensor query, Tensor key, Tensor value, bool is_causal) -> (Tensor, Tensor)");
  library.def(
      "attention_backward(Tensor of_out, Tensor query, Tensor key, Tensor value, Tensor log_sums, bool is_causal) -> "
      "(Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("attention", forward_kernel_of_attention);
  library.impl("attention_backward", backward_kernel_of_attention);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, AttentionMask mask) {
  const c10::DeviceType device = query.device().type();
  const bool autocast = at::autocast::is_autocast_enabled(device);
  const auto cast = [&](const at::Tensor& t) {
    return autocast ? at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device) : t;
  };
  const at::Tensor q = cast(query), k = cast(key), v = cast(value);
  const bool is_causal = mask == AttentionMask::Causal;
  if (has_kernel_of_attention(q, k, v)) return Attention::apply(q, k, v, is_causal);
  return at::scaled_dot_product_attention(q, k, v, {}, 0, is_causal, /*scale=*/std::nullopt,
                                          /*enable_gqa=*/q.dim() == 4 && q.size(1) != k.size(1));
}

}  // namespace snug::ops
