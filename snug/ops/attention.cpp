#include "snug/ops/attention.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
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
#include "snug/ops/cpu_kernels.h"

namespace snug::ops {
namespace {

// Of probabilities at once, and as much of their gradients.
constexpr Bytes kScoreBytes = 4_MiB;
constexpr std::int64_t kFewestRows = 16, kRowsAThread = 8;

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

/// The gradients of one sequence, (heads, positions, width) each.
class SequenceGradients {
 public:
  SequenceGradients(at::Tensor query, at::Tensor key, at::Tensor value, at::Tensor of_query, at::Tensor of_key,
                    at::Tensor of_value)
      : query_(std::move(query)),
        key_(std::move(key)),
        value_(std::move(value)),
        of_query_(std::move(of_query)),
        of_key_(std::move(of_key)),
        of_value_(std::move(of_value)) {}

  /// Of rows [first, first + rows) of the queries, added to those of the others; `scores` and `gradients` are room for
  /// the products, at least as large.
  void add_rows(const at::Tensor& of_out, const at::Tensor& log_sums, bool is_causal, std::int64_t first,
                std::int64_t rows, const at::Tensor& scores, const at::Tensor& gradients) {
    const std::int64_t heads = query_.size(0), width = query_.size(2);
    const std::int64_t columns = is_causal ? std::min(key_.size(1), first + rows) : key_.size(1);
    const at::Tensor p = scores.narrow(0, 0, heads * rows * columns).view({heads, rows, columns});
    const at::Tensor ds = gradients.narrow(0, 0, p.numel()).view(p.sizes());
    const at::Tensor q = query_.narrow(1, first, rows), k = key_.narrow(1, 0, columns);
    const at::Tensor of_o = of_out.narrow(1, first, rows);
    multiply(p, q, k.transpose(1, 2));
    multiply(ds, of_o, value_.narrow(1, 0, columns).transpose(1, 2));
    const at::Tensor sums = log_sums.narrow(1, first, rows);
    const kernels::AttentionRows all{.scores = p.data_ptr(),
                                     .gradients = ds.data_ptr(),
                                     .log_sums = sums.const_data_ptr(),
                                     .log_sums_head = sums.stride(0),
                                     .log_sums_row = sums.stride(1),
                                     .rows = rows,
                                     .columns = columns,
                                     .first_row = first,
                                     .is_causal = is_causal,
                                     .scale = 1 / std::sqrt(static_cast<double>(width))};
    at::parallel_for(0, heads * rows, kRowsAThread, [&](std::int64_t from, std::int64_t to) {
      cpu_kernels().attention_gradients(p.scalar_type(), all, from, to);
    });
    multiply(of_query_.narrow(1, first, rows), ds, k);
    add(of_key_.narrow(1, 0, columns), ds.transpose(1, 2), q);
    add(of_value_.narrow(1, 0, columns), p.transpose(1, 2), of_o);
  }

 private:
  static void multiply(at::Tensor to, const at::Tensor& a, const at::Tensor& b) { at::bmm_out(to, a, b); }

  /// Sums over groups of rows are in fp32, where they are the tensor's type.
  static void add(at::Tensor to, const at::Tensor& a, const at::Tensor& b) {
    if (to.scalar_type() == a.scalar_type()) {
      to.add_(at::bmm(a, b));
    } else {
      to.add_(at::bmm(a, b).to(to.scalar_type()));
    }
  }

  at::Tensor query_, key_, value_, of_query_, of_key_, of_value_;
};

Three backward_kernel_of_attention(const at::Tensor& of_out, const at::Tensor& query, const at::Tensor& key,
                                   const at::Tensor& value, const at::Tensor& log_sums, bool is_causal) {
  // As LibTorch's kernel, which is one operator, autocast does not round what is inside.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCPU);
  const std::int64_t heads = query.size(1), length = query.size(2), columns = key.size(2);
  const std::int64_t row_bytes = heads * columns * query.element_size();
  const std::int64_t step = std::min(length, std::max(kScoreBytes / std::max<std::int64_t>(row_bytes, 1), kFewestRows));
  const auto sums = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Three all{at::empty_like(query), at::empty_like(key), at::empty_like(value)};
  auto& [of_query, of_key, of_value] = all;
  const at::Tensor scores = at::empty({heads * step * columns}, query.options());
  const at::Tensor gradients = at::empty_like(scores);
  for (std::int64_t b = 0; b < query.size(0); ++b) {
    const at::Tensor key_sums = at::zeros(key[b].sizes(), key.options().dtype(sums));
    const at::Tensor value_sums = at::zeros_like(key_sums);
    SequenceGradients sequence(query[b], key[b], value[b], of_query[b], key_sums, value_sums);
    for (std::int64_t first = 0; first < length; first += step) {
      sequence.add_rows(of_out[b], log_sums[b], is_causal, first, std::min(step, length - first), scores, gradients);
    }
    of_key[b].copy_(key_sums);
    of_value[b].copy_(value_sums);
  }
  return all;
}

using Backward = decltype(backward_kernel_of_attention);

class Attention : public torch::autograd::Function<Attention> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, bool is_causal) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [out, log_sums] =
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, /*dropout_p=*/0, is_causal);
    context->save_for_backward({query, key, value, log_sums});
    context->saved_data["is_causal"] = is_causal;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (at::GradMode::is_enabled())
      throw Error("attention: it can be differentiated once; its gradient was asked for with create_graph");
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("snug::attention_backward", "").typed<Backward>();
    const auto saved = context->get_saved_variables();
    const auto [of_query, of_key, of_value] =
        op.call(gradients[0], saved[0], saved[1], saved[2], saved[3], context->saved_data["is_causal"].toBool());
    return {of_query, of_key, of_value, {}};
  }
};

/// What LibTorch takes its flash kernel for CPUs for, but for fp16, in which scores may be too large.
bool is_flash(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  const auto fits = [&](const at::Tensor& t) {
    return t.is_cpu() && t.dim() == 4 && t.is_floating_point() && t.scalar_type() != at::kHalf &&
           t.scalar_type() == query.scalar_type() && t.size(0) == query.size(0) && t.size(1) == query.size(1) &&
           t.size(3) == query.size(3) && t.stride(3) == 1 && t.numel() > 0;
  };
  return fits(query) && fits(key) && fits(value) && key.size(2) == value.size(2) &&
         at::globalContext().userEnabledFlashSDP();
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def(
      "attention_backward(Tensor of_out, Tensor query, Tensor key, Tensor value, Tensor log_sums, bool is_causal) -> "
      "(Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(snug, CPU, library) { library.impl("attention_backward", backward_kernel_of_attention); }

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, AttentionMask mask) {
  const bool is_causal = mask == AttentionMask::Causal;
  const c10::DeviceType device = query.device().type();
  const bool autocast = at::autocast::is_autocast_enabled(device);
  const auto cast = [&](const at::Tensor& t) {
    return autocast ? at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device) : t;
  };
  const at::Tensor q = cast(query), k = cast(key), v = cast(value);
  if (!is_flash(q, k, v)) return at::scaled_dot_product_attention(q, k, v, {}, 0, is_causal);
  return Attention::apply(q, k, v, is_causal);
}

}  // namespace snug::ops
