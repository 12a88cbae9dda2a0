#include <algorithm>

#include "snug/ops/kernels/declared.h"
#include "snug/ops/kernels/lanes.h"

namespace snug::ops::kernels::CPU_CAPABILITY {
namespace {

/// The scores may be rounded, and then their exponentials do not add up to one. They are made to, and what is taken
/// from the gradients of the probabilities is their mean under the same probabilities, so that the gradients of a row's
/// scores add up to zero: half of the error that the rounding would have.
template <typename T>
void gradients_of_row(const AttentionRows& all, std::int64_t index) {
  using L = Lanes<T>;
  using Math = typename L::Math;
  using Vec = typename L::Vec;
  const std::int64_t head = index / all.rows, row = index % all.rows;
  T* const scores = static_cast<T*>(all.scores) + index * all.columns;
  T* const gradients = static_cast<T*>(all.gradients) + index * all.columns;
  const std::int64_t seen = all.is_causal ? std::min(all.columns, all.first_row + row + 1) : all.columns;
  const Vec scale(static_cast<Math>(all.scale));
  const Vec log_sum(static_cast<const Math*>(all.log_sums)[head * all.log_sums_head + row * all.log_sums_row]);
  const auto exponential = [&](const Vec& score) {
    const Vec x = score * scale - log_sum;
    return L::kShort ? x.exp_u20() : x.exp();
  };
  const Math sum = reduce<T>(seen, 0, Sum{}, [&](std::int64_t i, std::int64_t count) {
    return each<T>(exponential, L::load(scores + i, count));
  });
  const Math weighted = reduce<T>(seen, 0, Sum{}, [&](std::int64_t i, std::int64_t count) {
    const auto product = [&](const Vec& score, const Vec& gradient) { return exponential(score) * gradient; };
    return each<T>(product, L::load(scores + i, count), L::load(gradients + i, count));
  });
  const Vec mean(weighted / sum), to_one(1 / sum);
  along<T>(seen, [&](std::int64_t i, std::int64_t count) {
    const L score = L::load(scores + i, count), gradient = L::load(gradients + i, count);
    const L probability = each<T>([&](const Vec& x) { return exponential(x) * to_one; }, score);
    each<T>([&](const Vec& p, const Vec& g) { return p * (g - mean) * scale; }, probability, gradient)
        .store(gradients + i, count);
    probability.store(scores + i, count);
  });
  std::fill(scores + seen, scores + all.columns, T(0));
  std::fill(gradients + seen, gradients + all.columns, T(0));
}

}  // namespace

void attention_gradients(c10::ScalarType type, const AttentionRows& rows, std::int64_t first, std::int64_t last) {
  for_type(type, [&](auto number) {
    for (std::int64_t i = first; i < last; ++i) gradients_of_row<decltype(number)>(rows, i);
  });
}

}  // namespace snug::ops::kernels::CPU_CAPABILITY
