#include <cmath>
#include <numbers>

#include "snug/ops/kernels/declared.h"
#include "snug/ops/kernels/lanes.h"

// The formulas, the order of their operations, and which products and sums are one, are those that LibTorch's own
// kernels have as it is released: the results are the same bits where those work on whole vectors (see agrees() in
// activated.cpp).
namespace snug::ops::kernels::CPU_CAPABILITY {
namespace {

// sqrt(2 / pi), from the same factors.
constexpr double kBeta = std::numbers::sqrt2 * (2 * std::numbers::inv_sqrtpi) * 0.5;

/// f(x) and its derivative.
template <typename Vec>
struct Point {
  Vec value, slope;
};

template <typename Math, typename Vec = at::vec::Vectorized<Math>>
struct GeluTanhAt {
  static Point<Vec> at(const Vec& x) {
    const Vec beta(static_cast<Math>(kBeta)), kappa(static_cast<Math>(0.044715));
    const Vec one(1), half(static_cast<Math>(0.5)), three(3);
    const Vec squared = x * x, tanh = (beta * fmadd(kappa, squared * x, x)).tanh();
    const Vec right = one + tanh, left = half * x;
    const Vec of_right = left * fmadd(tanh.neg(), tanh, one) * (beta * fmadd(three * kappa, squared, one));
    return {left * right, fmadd(half, right, of_right)};
  }
};

template <typename Math, typename Vec = at::vec::Vectorized<Math>>
struct SiluAt {
  static Point<Vec> at(const Vec& x) {
    const Vec one(1), below = one + x.neg().exp(), sigmoid = one / below;
    return {x / below, sigmoid * fmadd(x, one - sigmoid, one)};
  }
};

/// Silu's gradient is dy * sigmoid * (...), from the left, and so is not dy times a slope.
template <typename F, typename Vec>
Vec back(const F& /*f*/, const Vec& dy, const Vec& /*x*/, const Point<Vec>& point) {
  return dy * point.slope;
}

template <typename Math, typename Vec>
Vec back(const SiluAt<Math>& /*f*/, const Vec& dy, const Vec& x, const Point<Vec>& /*point*/) {
  const Vec one(1), sigmoid = one / (one + x.neg().exp());
  return dy * sigmoid * fmadd(x, one - sigmoid, one);
}

template <typename Visit>
void for_activation(c10::ScalarType type, Activation f, const Visit& visit) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    using Math = typename Lanes<T>::Math;
    switch (f) {
      case Activation::Gelu:
        return;
      case Activation::GeluTanh:
        return visit(T{}, GeluTanhAt<Math>{});
      case Activation::Silu:
        return visit(T{}, SiluAt<Math>{});
    }
  });
}

}  // namespace

void activated(c10::ScalarType type, Activation activation, const Activated& all, std::int64_t first,
               std::int64_t last) {
  for_activation(type, activation, [&](auto number, auto f) {
    using T = decltype(number);
    using L = Lanes<T>;
    const T *const xs = static_cast<const T*>(all.x), *const factors = static_cast<const T*>(all.factor);
    T* const ys = static_cast<T*>(all.y);
    along<T>(last - first, [&](std::int64_t offset, std::int64_t count) {
      const std::int64_t i = first + offset;
      L y = each<T>([&](const auto& x) { return f.at(x).value; }, L::load(xs + i, count));
      if (factors != nullptr) y = each<T>(Product{}, y.rounded(), L::load(factors + i, count));
      y.store(ys + i, count);
    });
  });
}

void differentiated(c10::ScalarType type, Activation activation, const Activated& all,
                    const ActivatedGradients& gradients, std::int64_t first, std::int64_t last) {
  for_activation(type, activation, [&](auto number, auto f) {
    using T = decltype(number);
    using L = Lanes<T>;
    const T *const xs = static_cast<const T*>(all.x), *const factors = static_cast<const T*>(all.factor);
    const T* const of_y = static_cast<const T*>(gradients.of_y);
    T *const ys = static_cast<T*>(all.y), *const of_x = static_cast<T*>(gradients.of_x);
    T* const of_factor = static_cast<T*>(gradients.of_factor);
    along<T>(last - first, [&](std::int64_t offset, std::int64_t count) {
      const std::int64_t i = first + offset;
      const L x = L::load(xs + i, count);
      L dy = L::load(of_y + i, count), y, dx;
      Point<typename L::Vec> points[L::kVecs];
      for (int k = 0; k < L::kVecs; ++k) {
        points[k] = f.at(x.part[k]);
        y.part[k] = points[k].value;
      }
      if (factors != nullptr) {
        const L factor = L::load(factors + i, count);
        y = y.rounded();
        each<T>(Product{}, dy, y).store(of_factor + i, count);
        y = each<T>(Product{}, y, factor);
        dy = each<T>(Product{}, dy, factor).rounded();
      }
      for (int k = 0; k < L::kVecs; ++k) dx.part[k] = back(f, dy.part[k], x.part[k], points[k]);
      y.store(ys + i, count);
      dx.store(of_x + i, count);
    });
  });
}

}  // namespace snug::ops::kernels::CPU_CAPABILITY
