#include <cmath>
#include <limits>

#include "snug/ops/kernels/declared.h"
#include "snug/ops/kernels/lanes.h"

namespace snug::ops::kernels::CPU_CAPABILITY {
namespace {

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

  [[nodiscard]] Math most() const {
    return reduce<T>(columns_, -std::numeric_limits<Math>::infinity(), Most{},
                     [&](std::int64_t i, std::int64_t count) { return load(i, count); });
  }

  /// Of x - high.
  [[nodiscard]] Math sum_of_exponentials(Math high) const {
    return reduce<T>(columns_, Math{0}, Sum{},
                     [&](std::int64_t i, std::int64_t count) { return exponentials(high, i, count); });
  }

  /// And they replace the logits.
  Math sum_of_made_exponentials(Math high) {
    return reduce<T>(columns_, Math{0}, Sum{}, [&](std::int64_t i, std::int64_t count) {
      const L made = exponentials(high, i, count);
      made.store(x_ + i, count);
      return made;
    });
  }

  [[nodiscard]] double mean_below(Math high) const {
    const Vec from(high);
    return reduce<T>(columns_, Math{0}, Sum{},
                     [&](std::int64_t i, std::int64_t count) {
                       return each<T>([&](const Vec& x) { return from - x; }, load(i, count));
                     }) /
           static_cast<double>(columns_);
  }

  /// softmax * a - b, times how far the cap lets a change through.
  void differentiate(Math log_sum, Math a, Math b, double soft_cap) {
    const Vec times(a), minus(b), inverse(inverse_of(soft_cap)), one(1);
    along<T>(columns_, [&](std::int64_t i, std::int64_t count) {
      each<T>(
          [&](const Vec& softmax, const Vec& x) {
            const Vec gradient = softmax * times - minus;
            if (soft_cap == 0) return gradient;
            const Vec inside = x * inverse;
            return gradient * (one - inside * inside);
          },
          exponentials(log_sum, i, count), load(i, count))
          .store(x_ + i, count);
    });
  }

  /// The same of made exponentials, without a cap: a has their sum in it.
  void differentiate_made(Math a, Math b) {
    const Vec times(a), minus(b);
    along<T>(columns_, [&](std::int64_t i, std::int64_t count) {
      each<T>([&](const Vec& e) { return e * times - minus; }, L::load(x_ + i, count)).store(x_ + i, count);
    });
  }

  void set(std::int64_t i, Math number) { x_[i] = static_cast<T>(number); }

  static Math inverse_of(double soft_cap) { return static_cast<Math>(soft_cap == 0 ? 0 : 1 / soft_cap); }

 private:
  [[nodiscard]] L load(std::int64_t i, std::int64_t count) const {
    const L x = L::load(x_ + i, count);
    return bias_ == nullptr ? x : each<T>(Sum{}, x, L::load(bias_ + i, count));
  }

  [[nodiscard]] L exponentials(Math high, std::int64_t i, std::int64_t count) const {
    const Vec less(high);
    return each<T>([&](const Vec& x) { return (x - less).exp_u20(); }, load(i, count));
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
  using Math = typename Lanes<T>::Math;
  // Made once, where they are not rounded to be kept.
  const bool made = rows.times != 0 && terms.soft_cap == 0 && !Lanes<T>::kShort;
  const double s = terms.label_smoothing;
  const Math most = row.most(), logit = row.at(target);
  const double below = s != 0 ? row.mean_below(most) : 0;
  const Math exponentials = made ? row.sum_of_made_exponentials(most) : row.sum_of_exponentials(most);
  const Math log_sum = most + std::log(exponentials);
  const double sum = log_sum;
  double value = (1 - s) * static_cast<double>(log_sum - logit) + terms.z_loss * sum * sum;
  if (s != 0) value += s * (static_cast<double>(log_sum - most) + below);
  rows.losses[r] = value;
  if (rows.times == 0) return;
  const auto a = static_cast<Math>(rows.times * (1 + 2 * terms.z_loss * sum)),
             b = static_cast<Math>(rows.times * s / static_cast<double>(rows.columns)),
             c = static_cast<Math>(rows.times * (1 - s));
  if (made) {
    row.differentiate_made(a / exponentials, b);
  } else {
    row.differentiate(log_sum, a, b, terms.soft_cap);
  }
  const Math inner = logit * Row<T>::inverse_of(terms.soft_cap);
  row.set(target, (std::exp(logit - log_sum) * a - b - c) * (Math{1} - inner * inner));
}

}  // namespace

void softmax_loss(c10::ScalarType type, const CrossEntropyTerms& terms, const LogitRows& rows, std::int64_t first,
                  std::int64_t last) {
  for_type(type, [&](auto number) {
    for (std::int64_t r = first; r < last; ++r) loss_of_row<decltype(number)>(terms, rows, r);
  });
}

}  // namespace snug::ops::kernels::CPU_CAPABILITY
