#include <cmath>

#include "snug/ops/kernels/declared.h"
#include "snug/ops/kernels/lanes.h"
#include "snug/ops/kernels/libtorch_sum.h"

// Number by number as at::rms_norm, which LibTorch puts together of other operators on CPUs, and its derivative.
namespace snug::ops::kernels::CPU_CAPABILITY {
namespace {

/// Returns where the sum is.
template <typename T>
const T* add_row(const NormalizedRows& rows, const T* x, std::int64_t r) {
  using Math = typename Lanes<T>::Math;
  const std::int64_t n = rows.columns;
  T* const sum = static_cast<T*>(rows.sum) + r * n;
  for_type(rows.delta_type, [&](auto number) {
    const auto* const delta = static_cast<const decltype(number)*>(rows.delta) + r * n;
    for (std::int64_t i = 0; i < n; ++i) sum[i] = static_cast<T>(static_cast<Math>(x[i]) + static_cast<Math>(delta[i]));
  });
  return sum;
}

template <typename T>
void normalize_row(const NormalizedRows& rows, std::int64_t r) {
  using L = Lanes<T>;
  using Math = typename L::Math;
  using Vec = typename L::Vec;
  const std::int64_t n = rows.columns;
  const T* x = static_cast<const T*>(rows.x) + r * n;
  if (rows.delta != nullptr) x = add_row<T>(rows, x, r);
  const auto* const weight = static_cast<const Math*>(rows.weight);
  T* const y = static_cast<T*>(rows.y) + r * n;
  const Math mean = LibTorchSum<Math>::of(n,
                                          [&](std::int64_t i) {
                                            const auto here = static_cast<Math>(x[i]);
                                            return here * here;
                                          }) /
                    static_cast<Math>(n);
  const Math inverse = Math{1} / std::sqrt(mean + static_cast<Math>(rows.epsilon));
  static_cast<Math*>(rows.inverse_roots)[r] = inverse;
  const Vec times(inverse);
  along<T>(n, [&](std::int64_t i, std::int64_t count) {
    L all = each<T>([&](const Vec& here) { return here * times; }, L::load(x + i, count));
    if (weight != nullptr) all = each<T>(Product{}, all, L::load_math(weight + i, count));
    all.store(y + i, count);
  });
}

template <typename T>
void differentiate_row(const NormalizedRows& rows, const NormalizedGradients& gradients, std::int64_t r) {
  using L = Lanes<T>;
  using Math = typename L::Math;
  using Vec = typename L::Vec;
  const std::int64_t n = rows.columns;
  const T *const x = static_cast<const T*>(rows.x) + r * n, *const of_y = static_cast<const T*>(gradients.of_y) + r * n;
  const auto* const weight = static_cast<const Math*>(rows.weight);
  const T* const of_sum = gradients.of_sum == nullptr ? nullptr : static_cast<const T*>(gradients.of_sum) + r * n;
  T* const of_x = static_cast<T*>(gradients.of_x) + r * n;
  const Math inverse = static_cast<const Math*>(rows.inverse_roots)[r];
  const auto of_normal = [&](std::int64_t i) {
    const auto here = static_cast<Math>(of_y[i]);
    return weight == nullptr ? here : here * weight[i];
  };
  const Math of_inverse =
      LibTorchSum<Math>::of(n, [&](std::int64_t i) { return of_normal(i) * static_cast<Math>(x[i]); });
  const Math of_mean = Math{-0.5} * of_inverse * (inverse * inverse * inverse);
  const Vec times(inverse), of_square(of_mean / static_cast<Math>(n)), two(2);
  auto* const of_weight = gradients.of_weights == nullptr ? nullptr : static_cast<Math*>(gradients.of_weights) + r * n;
  along<T>(n, [&](std::int64_t i, std::int64_t count) {
    const L here = L::load(x + i, count), above = L::load(of_y + i, count);
    if (of_weight != nullptr) {
      each<T>([&](const Vec& g, const Vec& v) { return g * (v * times); }, above, here)
          .store_math(of_weight + i, count);
    }
    const L normal = weight == nullptr ? above : each<T>(Product{}, above, L::load_math(weight + i, count));
    const L straight = each<T>([&](const Vec& g) { return g * times; }, normal);
    const L by_mean = each<T>([&](const Vec& v) { return of_square * (two * v); }, here);
    const auto sum = [](const L& a, const L& b) { return each<T>(Sum{}, a, b); };
    L all = sum(straight, by_mean);
    if (of_sum != nullptr) {
      // Numbers of few bits are raised before they are normalized, and their gradients rounded before they are added.
      const L beside = L::load(of_sum + i, count);
      all = L::kShort ? sum(beside, all.rounded()) : sum(sum(beside, straight), by_mean);
    }
    all.store(of_x + i, count);
  });
}

}  // namespace

void rms_norm(c10::ScalarType type, const NormalizedRows& rows, std::int64_t first, std::int64_t last) {
  for_type(type, [&](auto number) {
    for (std::int64_t r = first; r < last; ++r) normalize_row<decltype(number)>(rows, r);
  });
}

void rms_norm_gradients(c10::ScalarType type, const NormalizedRows& rows, const NormalizedGradients& gradients,
                        std::int64_t first, std::int64_t last) {
  for_type(type, [&](auto number) {
    for (std::int64_t r = first; r < last; ++r) differentiate_row<decltype(number)>(rows, gradients, r);
  });
}

}  // namespace snug::ops::kernels::CPU_CAPABILITY
