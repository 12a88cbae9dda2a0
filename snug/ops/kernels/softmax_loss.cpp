#include <cmath>
#include <limits>

#include "snug/ops/kernels/declared.h"
#include "snug/ops/kernels/lanes.h"

namespace snug::ops::kernels::CPU_CAPABILITY {
namespace {

template <typename Vec>
Vec exponential(const Vec& x, bool is_short) {
  return is_short ? x.exp_u20() : x.exp();
}

template <typename T>
class Row {
  using L = Lanes<T>;
  using Math = typename L::Math;
  using Vec = typename L::Vec;

 public:
  Row(T* logits, const T* bias, std::int64_t columns) : x_(logits), bias_(bias), columns_(columns) {}

  void cap(double at) {
    const Vec most(static_cast<Math>(at));
    along<T>(columns_, [&](std::int64_t i, std::int64_t count) {
      each<T>([&](const Vec& x) { return (x / most).tanh() * most; }, load(i, count)).store(x_ + i, count);
    });
    bias_ = nullptr;  // It is in them now.
  }

  [[nodiscard]] Math at(std::int64_t i) const {
    return static_cast<Math>(x_[i]) + (bias_ != nullptr ? static_cast<Math>(bias_[i]) : Math{0});
  }

  [[nodiscard]] Math log_sum_exp() const {
    const auto here = [&](std::int64_t i, std::int64_t count) { return load(i, count); };
    const Math most = reduce<T>(columns_, -std::numeric_limits<Math>::infinity(), Most{}, here);
    const Vec less(most);
    const Math sum = reduce<T>(columns_, Math{0}, Sum{}, [&](std::int64_t i, std::int64_t count) {
      return each<T>([&](const Vec& x) { return exponential(x - less, L::kShort); }, load(i, count));
    });
    return most + std::log(sum);
  }

  [[nodiscard]] double mean_below(Math high) const {
    const Vec from(high);
    return reduce<T>(columns_, Math{0}, Sum{},
                     [&](std::int64_t i, std::int64_t count) {
                       return each<T>([&](const Vec& x) { return from - x; }, load(i, count));
                     }) /
           static_cast<double>(columns_);
  }

  /// softmax * a - b, and at the target c less; times how far the cap lets a change through.
  void differentiate(Math log_sum, Math a, Math b, Math c, std::int64_t target, double soft_cap) {
    const Vec less(log_sum), times(a), minus(b), inverse(static_cast<Math>(soft_cap == 0 ? 0 : 1 / soft_cap)), one(1);
    const Math logit = at(target);
    const Math inner = logit * static_cast<Math>(soft_cap == 0 ? 0 : 1 / soft_cap);
    const Math of_target = (std::exp(logit - log_sum) * a - b - c) * (Math{1} - inner * inner);
    along<T>(columns_, [&](std::int64_t i, std::int64_t count) {
      each<T>(
          [&](const Vec& x) {
            const Vec gradient = exponential(x - less, L::kShort) * times - minus;
            if (soft_cap == 0) return gradient;
            const Vec inside = x * inverse;
            return gradient * (one - inside * inside);
          },
          load(i, count))
          .store(x_ + i, count);
    });
    x_[target] = static_cast<T>(of_target);
  }

 private:
  [[nodiscard]] L load(std::int64_t i, std::int64_t count) const {
    const L x = L::load(x_ + i, count);
    return bias_ == nullptr ? x : each<T>(Sum{}, x, L::load(bias_ + i, count));
  }

  T* x_;
  const T* bias_;
  std::int64_t columns_;
};

template <typename T>
void loss_of_row(const CrossEntropyTerms& terms, const LogitRows& rows, std::int64_t r) {
  T* const logits = static_cast<T*>(rows.logits) + r * rows.columns;
  const std::int64_t target = rows.targets[r];
  if (target == rows.ignored) {
    rows.losses[r] = 0;
    if (rows.times != 0) std::fill_n(logits, rows.columns, T(0));
    return;
  }
  Row<T> row(logits, static_cast<const T*>(rows.bias), rows.columns);
  if (terms.soft_cap != 0) row.cap(terms.soft_cap);
  const auto log_sum = row.log_sum_exp();
  const double s = terms.label_smoothing, sum = log_sum;
  double value = (1 - s) * static_cast<double>(log_sum - row.at(target)) + terms.z_loss * sum * sum;
  if (s != 0) value += s * row.mean_below(log_sum);
  rows.losses[r] = value;
  if (rows.times == 0) return;
  using Math = typename Lanes<T>::Math;
  row.differentiate(log_sum, static_cast<Math>(rows.times * (1 + 2 * terms.z_loss * sum)),
                    static_cast<Math>(rows.times * s / static_cast<double>(rows.columns)),
                    static_cast<Math>(rows.times * (1 - s)), target, terms.soft_cap);
}

}  // namespace

void softmax_loss(c10::ScalarType type, const CrossEntropyTerms& terms, const LogitRows& rows, std::int64_t first,
                  std::int64_t last) {
  for_type(type, [&](auto number) {
    for (std::int64_t r = first; r < last; ++r) loss_of_row<decltype(number)>(terms, rows, r);
  });
}

}  // namespace snug::ops::kernels::CPU_CAPABILITY
