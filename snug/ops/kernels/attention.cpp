#include <algorithm>
#include <cmath>
#include <limits>

#include "snug/ops/kernels/declared.h"
#include "snug/ops/kernels/lanes.h"

namespace snug::ops::kernels::CPU_CAPABILITY {
namespace {

/// One row of the scores.
template <typename T>
struct ScoreRow {
  using Math = typename Lanes<T>::Math;

  ScoreRow(const AttentionRows& all, std::int64_t index)
      : columns(all.columns),
        seen(all.is_causal ? std::min(all.columns, all.first_row + index % all.rows + 1) : all.columns),
        scores(static_cast<T*>(all.scores) + index * all.columns),
        log_sum(static_cast<Math*>(all.log_sums) + index / all.rows * all.log_sums_head +
                index % all.rows * all.log_sums_row) {}

  std::int64_t columns, seen;
  T* scores;
  Math* log_sum;
};

/// exp(score * scale - less) along a row, which is computed once where the row is not too long.
template <typename T>
class Exponentials {
 public:
  using L = Lanes<T>;
  using Math = typename L::Math;
  using Vec = typename L::Vec;

  Exponentials(const ScoreRow<T>& row, Math scale, Math less)
      : scores_(row.scores), keeps_(row.seen <= kKept), scale_(scale), less_(less) {}

  L first(std::int64_t i, std::int64_t count) {
    const L all = each<T>(
        [&](const Vec& score) {
          const Vec x = score * scale_ - less_;
          return L::kShort ? x.exp_u20() : x.exp();
        },
        L::load(scores_ + i, count));
    if (keeps_) {
      for (int k = 0; k < L::kVecs; ++k) all.part[k].store(kept_ + i + k * L::kVec);
    }
    return all;
  }

  L again(std::int64_t i, std::int64_t count) {
    if (!keeps_) return first(i, count);
    L all;
    for (int k = 0; k < L::kVecs; ++k) all.part[k] = Vec::loadu(kept_ + i + k * L::kVec);
    return all;
  }

 private:
  static constexpr std::int64_t kKept = 4096;
  const T* scores_;
  bool keeps_;
  Vec scale_, less_;
  Math kept_[kKept + L::kWidth];
};

template <typename T>
void probabilities_of_row(const AttentionRows& all, std::int64_t index) {
  using L = Lanes<T>;
  using Math = typename L::Math;
  using Vec = typename L::Vec;
  const ScoreRow<T> row(all, index);
  const auto scale = static_cast<Math>(all.scale);
  const Math most =
      scale * reduce<T>(row.seen, -std::numeric_limits<Math>::infinity(), Most{},
                        [&](std::int64_t i, std::int64_t count) { return L::load(row.scores + i, count); });
  Exponentials<T> exponentials(row, scale, most);
  const Math sum =
      reduce<T>(row.seen, 0, Sum{}, [&](std::int64_t i, std::int64_t count) { return exponentials.first(i, count); });
  *row.log_sum = most + std::log(sum);
  const Vec to_one(1 / sum);
  along<T>(row.seen, [&](std::int64_t i, std::int64_t count) {
    each<T>([&](const Vec& e) { return e * to_one; }, exponentials.again(i, count)).store(row.scores + i, count);
  });
  std::fill(row.scores + row.seen, row.scores + row.columns, T(0));
}

/// What is taken from the gradients of the probabilities is their mean under the probabilities of scores that are
/// rounded as those of the forward pass were: the gradients of a row's scores add up to zero, which is half of the
/// error that the rounding would have.
template <typename T>
void gradients_of_row(const AttentionRows& all, std::int64_t index) {
  using L = Lanes<T>;
  using Math = typename L::Math;
  using Vec = typename L::Vec;
  const ScoreRow<T> row(all, index);
  T* const gradients = static_cast<T*>(all.gradients) + index * all.columns;
  Exponentials<T> probabilities(row, static_cast<Math>(all.scale), *row.log_sum);
  const Vec mean(reduce<T>(row.seen, 0, Sum{}, [&](std::int64_t i, std::int64_t count) {
    const auto product = [](const Vec& p, const Vec& g) { return p * g; };
    return each<T>(product, probabilities.first(i, count), L::load(gradients + i, count));
  }));
  const Vec scale(static_cast<Math>(all.scale));
  along<T>(row.seen, [&](std::int64_t i, std::int64_t count) {
    const L probability = probabilities.again(i, count);
    each<T>([&](const Vec& p, const Vec& g) { return p * (g - mean) * scale; }, probability,
            L::load(gradients + i, count))
        .store(gradients + i, count);
    probability.store(row.scores + i, count);
  });
  std::fill(row.scores + row.seen, row.scores + row.columns, T(0));
  std::fill(gradients + row.seen, gradients + row.columns, T(0));
}

}  // namespace

void attention_probabilities(c10::ScalarType type, const AttentionRows& rows, std::int64_t first, std::int64_t last) {
  for_type(type, [&](auto number) {
    for (std::int64_t i = first; i < last; ++i) probabilities_of_row<decltype(number)>(rows, i);
  });
}

void attention_gradients(c10::ScalarType type, const AttentionRows& rows, std::int64_t first, std::int64_t last) {
  for_type(type, [&](auto number) {
    for (std::int64_t i = first; i < last; ++i) gradients_of_row<decltype(number)>(rows, i);
  });
}

}  // namespace snug::ops::kernels::CPU_CAPABILITY
