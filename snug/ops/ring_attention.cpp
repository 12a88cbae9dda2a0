#include "snug/ops/ring_attention.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <vector>

#include "snug/base/errors.h"
#include "snug/ops/held_group.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kHeads = 1, kPositions = 2;

enum class Sees : std::uint8_t { All, Causal };

/// Of some queries and some keys: rows, and the logarithms of the sums of their exponentials.
struct Attended {
  at::Tensor out, log_sums;
};
struct AttendedGradients {
  at::Tensor query, key, value;
};

/// Whether LibTorch's fused kernel does it, which CUDA has none of.
bool has_flash(const at::Tensor& query, const at::Tensor& value) {
  return !query.is_cuda() && query.size(-1) == value.size(-1);
}

at::ScalarType sums_of(const at::Tensor& query) {
  return query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Products, where there is no fused kernel.
at::Tensor scores(const at::Tensor& query, const at::Tensor& key, Sees sees, double scale) {
  at::Tensor all = at::matmul(query, key.transpose(2, 3)).to(sums_of(query));
  all.mul_(scale);
  if (sees == Sees::Causal) {
    const at::Tensor later = at::ones({query.size(kPositions), key.size(kPositions)}, all.options().dtype(at::kBool));
    all.masked_fill_(later.triu(1), -std::numeric_limits<double>::infinity());
  }
  return all;
}

double scale_of(const at::Tensor& query) { return 1 / std::sqrt(static_cast<double>(query.size(-1))); }

Attended attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, Sees sees) {
  if (has_flash(query, value)) {
    auto [out, log_sums] =
        at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, /*dropout_p=*/0, sees == Sees::Causal);
    return {std::move(out), std::move(log_sums)};
  }
  const at::Tensor all = scores(query, key, sees, scale_of(query));
  at::Tensor log_sums = all.logsumexp(-1);
  return {at::matmul((all - log_sums.unsqueeze(-1)).exp_().to(value.scalar_type()), value), std::move(log_sums)};
}

/// `whole`: of all keys, as probabilities are.
AttendedGradients attend_backward(const at::Tensor& of_out, const at::Tensor& query, const at::Tensor& key,
                                  const at::Tensor& value, const Attended& whole, Sees sees) {
  if (has_flash(query, value)) {
    auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        of_out, query, key, value, whole.out, whole.log_sums, /*dropout_p=*/0, sees == Sees::Causal);
    return {std::move(of_query), std::move(of_key), std::move(of_value)};
  }
  const at::Tensor probabilities = scores(query, key, sees, scale_of(query)).sub_(whole.log_sums.unsqueeze(-1)).exp_();
  const at::Tensor of_rows = (of_out * whole.out).sum(-1, /*keepdim=*/true, probabilities.scalar_type());
  at::Tensor of_scores = at::matmul(of_out, value.transpose(2, 3)).to(probabilities.scalar_type());
  of_scores.sub_(of_rows).mul_(probabilities).mul_(scale_of(query));
  of_scores = of_scores.to(query.scalar_type());
  return {at::matmul(of_scores, key), at::matmul(of_scores.transpose(2, 3), query),
          at::matmul(probabilities.to(of_out.scalar_type()).transpose(2, 3), of_out)};
}

// Which rows these are differs between processes. Copies have them where views would: a view's place is part of what a
// step is, and the steps of all are to be the same, so that plans may have all of them pass keys on once more.

at::Tensor take_rows(const at::Tensor& t, std::int64_t first, std::int64_t count) {
  return at::slice_copy(t, kPositions, first, first + count);
}
at::Tensor with_rows(const at::Tensor& t, const at::Tensor& rows, std::int64_t first) {
  return at::slice_scatter(t, rows, kPositions, first, first + rows.size(kPositions));
}

/// What a process has from another one: keys and values, side by side.
class Passed {
 public:
  Passed(at::Tensor both, std::int64_t key_width, std::int64_t queries_to_key)
      : both_(std::move(both)), key_width_(key_width), queries_to_key_(queries_to_key) {}

  /// For each head of queries, of some rows.
  struct Rows {
    at::Tensor key, value;
  };
  [[nodiscard]] Rows rows(std::int64_t first, std::int64_t count) const {
    const at::Tensor both = count == both_.size(kPositions) ? both_ : take_rows(both_, first, count);
    const auto for_queries = [&](const at::Tensor& t) {
      return queries_to_key_ == 1 ? t : t.repeat_interleave(queries_to_key_, kHeads);
    };
    return {for_queries(both.narrow(-1, 0, key_width_)),
            for_queries(both.narrow(-1, key_width_, both.size(-1) - key_width_))};
  }
  /// The other way round: `sums`, which go with them, and gradients of those rows.
  [[nodiscard]] at::Tensor plus(const at::Tensor& sums, const AttendedGradients& gradients, std::int64_t first) const {
    const auto of_keys = [&](const at::Tensor& t) {
      return queries_to_key_ == 1 ? t : t.unflatten(kHeads, {-1, queries_to_key_}).sum(kHeads + 1);
    };
    const std::int64_t count = gradients.key.size(kPositions);
    const at::Tensor rows = count == sums.size(kPositions) ? sums : take_rows(sums, first, count);
    rows.narrow(-1, 0, key_width_).add_(of_keys(gradients.key));
    rows.narrow(-1, key_width_, rows.size(-1) - key_width_).add_(of_keys(gradients.value));
    return rows.is_same(sums) ? sums : with_rows(sums, rows, first);
  }
  [[nodiscard]] const at::Tensor& both() const { return both_; }
  void shift(TensorGroup& group) { both_ = group.shift(both_); }

 private:
  at::Tensor both_;
  std::int64_t key_width_, queries_to_key_;
};

Passed side_by_side(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return {at::cat({key, value}, -1), key.size(-1), query.size(kHeads) / key.size(kHeads)};
}

/// Which of the own queries see which of the keys that come from another process.
struct Seen {
  std::int64_t first_query, first_key, count;
  Sees sees;
};
/// With pieces of `each` positions. An earlier process has an earlier first piece, and a later last one. As many of the
/// same sizes in each process, so that their steps are alike.
std::vector<Seen> seen_of(int from, int rank, std::int64_t each) {
  if (from == rank) return {{0, 0, 2 * each, Sees::Causal}};
  const std::int64_t other = from < rank ? 0 : each;
  return {{each, 0, each, Sees::All}, {other, other, each, Sees::All}};
}

int from_at(int step, const TensorGroup& group) { return (group.rank() - step + group.size()) % group.size(); }

void put_together(Attended& sums, const Attended& more, const Seen& seen) {
  const at::Tensor out = take_rows(sums.out, seen.first_query, seen.count),
                   log_sums = take_rows(sums.log_sums, seen.first_query, seen.count),
                   all = at::logaddexp(log_sums, more.log_sums);
  out.mul_((log_sums - all).exp_().unsqueeze(-1));
  out.addcmul_(more.out.to(out.scalar_type()), (more.log_sums - all).exp_().unsqueeze(-1));
  sums = {with_rows(sums.out, out, seen.first_query), with_rows(sums.log_sums, all, seen.first_query)};
}

class RingAttention : public torch::autograd::Function<RingAttention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, const LayerGroup& group) {
    hold_group(context, group);
    const std::int64_t each = query.size(kPositions) / 2;
    Passed passed = side_by_side(query, key, value);
    Attended sums;
    for (int step = 0; step < group->size(); ++step) {
      if (step > 0) passed.shift(*group);
      for (const Seen& seen : seen_of(from_at(step, *group), group->rank(), each)) {
        const auto [keys, values] = passed.rows(seen.first_key, seen.count);
        const Attended more =
            attend(step == 0 ? query : take_rows(query, seen.first_query, seen.count), keys, values, seen.sees);
        if (step == 0) {
          sums = {more.out.to(more.log_sums.scalar_type()), more.log_sums.contiguous()};
        } else {
          put_together(sums, more, seen);
        }
      }
    }
    at::Tensor out = sums.out.to(query.scalar_type());
    context->save_for_backward({query, key, value, out, sums.log_sums});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    only_once("ring attention");
    TensorGroup& group = held_group(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &query = saved[0], &key = saved[1], &value = saved[2];
    const Attended whole{saved[3], saved[4]};
    const at::TensorOptions options = query.options().dtype(whole.log_sums.scalar_type());
    at::Tensor of_query = at::zeros(query.sizes(), options);
    Passed passed = side_by_side(query, key, value);
    at::Tensor of_passed = at::zeros(passed.both().sizes(), options);
    for (int step = 0; step < group.size(); ++step) {
      if (step > 0) passed.shift(group);
      for (const Seen& seen : seen_of(from_at(step, group), group.rank(), query.size(kPositions) / 2)) {
        const auto own = [&](const at::Tensor& t) {
          return step == 0 ? t : take_rows(t, seen.first_query, seen.count);
        };
        const auto [keys, values] = passed.rows(seen.first_key, seen.count);
        const AttendedGradients more = attend_backward(own(gradients[0]), own(query), keys, values,
                                                       {own(whole.out), own(whole.log_sums)}, seen.sees);
        const at::Tensor sum = own(of_query).add_(more.query);
        if (step > 0) of_query = with_rows(of_query, sum, seen.first_query);
        of_passed = passed.plus(of_passed, more, seen.first_key);
      }
      // Behind the last one they are where they belong.
      of_passed = group.shift(of_passed);
    }
    const std::int64_t width = key.size(-1);
    return {of_query.to(query.scalar_type()),
            of_passed.narrow(-1, 0, width).to(key.scalar_type()),
            of_passed.narrow(-1, width, value.size(-1)).to(value.scalar_type()),
            {}};
  }
};

/// As at::scaled_dot_product_attention takes them.
at::Tensor in_autocast_type(const at::Tensor& t) {
  const c10::DeviceType device = t.device().type();
  const bool casts = at::autocast::is_autocast_enabled(device) && t.scalar_type() != at::kDouble;
  return casts ? t.to(at::autocast::get_autocast_dtype(device)) : t;
}

}  // namespace

at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          const LayerGroup& group) {
  if (query.size(kPositions) % 2 != 0) {
    throw UsageError(
        fmt::format("context parallel: {} positions in each process, and each has two pieces of a sequence; use a "
                    "length that is a multiple of {}",
                    query.size(kPositions), 2 * group->size()));
  }
  return RingAttention::apply(in_autocast_type(query), in_autocast_type(key), in_autocast_type(value), group);
}

}  // namespace snug::ops
