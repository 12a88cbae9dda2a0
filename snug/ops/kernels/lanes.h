#pragma once

// Of the files in this folder, which are compiled once for each instruction set: nothing here may be a function that
// the rest of the program shares, so no containers and no tensors (see table.h).
#include <ATen/cpu/vec/functional.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace snug::ops::kernels {
inline namespace CPU_CAPABILITY {

/// What one load of Ts gives, raised to the type that is computed in: fp32, or fp64 for fp64.
template <typename T>
struct Lanes {
  using Math = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Vec = at::vec::Vectorized<Math>;
  static constexpr bool kShort = !std::is_same_v<T, Math>;
  static constexpr int kVecs = kShort ? 2 : 1;
  static constexpr std::int64_t kVec = Vec::size();
  static constexpr std::int64_t kWidth = kVecs * kVec;

  Vec part[kVecs];

  /// `count` numbers, at most kWidth; zeros behind them.
  static Lanes load(const T* from, std::int64_t count) {
    using In = at::vec::Vectorized<T>;
    const In in = count == kWidth ? In::loadu(from) : In::loadu(from, count);
    if constexpr (kShort) {
      const auto [low, high] = at::vec::convert_to_float<T>(in);
      return {{low, high}};
    } else {
      return {{in}};
    }
  }

  /// The same of numbers of the type that is computed in.
  static Lanes load_math(const Math* from, std::int64_t count) {
    Lanes all;
    for (int k = 0; k < kVecs; ++k) {
      const std::int64_t here = std::clamp(count - k * kVec, std::int64_t{0}, kVec);
      all.part[k] = here == kVec ? Vec::loadu(from + k * kVec) : Vec::loadu(from + k * kVec, here);
    }
    return all;
  }

  void store_math(Math* to, std::int64_t count) const {
    for (int k = 0; k < kVecs; ++k) {
      const std::int64_t here = std::clamp(count - k * kVec, std::int64_t{0}, kVec);
      here == kVec ? part[k].store(to + k * kVec) : part[k].store(to + k * kVec, static_cast<int>(here));
    }
  }

  void store(T* to, std::int64_t count) const {
    at::vec::Vectorized<T> out;
    if constexpr (kShort) {
      out = at::vec::convert_from_float<T>(part[0], part[1]);
    } else {
      out = part[0];
    }
    count == kWidth ? out.store(to) : out.store(to, static_cast<int>(count));
  }

  /// What comes of rounding to T.
  [[nodiscard]] Lanes rounded() const {
    if constexpr (kShort) {
      const auto [low, high] = at::vec::convert_to_float<T>(at::vec::convert_from_float<T>(part[0], part[1]));
      return {{low, high}};
    } else {
      return *this;
    }
  }
};

/// f of the numbers at one place of each.
template <typename T, typename F, typename... More>
Lanes<T> each(const F& f, const Lanes<T>& first, const More&... more) {
  Lanes<T> out;
  for (int k = 0; k < Lanes<T>::kVecs; ++k) out.part[k] = f(first.part[k], more.part[k]...);
  return out;
}

/// visit(position, count) along n numbers.
template <typename T, typename Visit>
void along(std::int64_t n, const Visit& visit) {
  for (std::int64_t i = 0; i < n; i += Lanes<T>::kWidth) visit(i, std::min(Lanes<T>::kWidth, n - i));
}

struct Sum {
  template <typename V>
  V operator()(const V& a, const V& b) const {
    return a + b;
  }
};
struct Product {
  template <typename V>
  V operator()(const V& a, const V& b) const {
    return a * b;
  }
};
struct Most {
  template <typename V>
  V operator()(const V& a, const V& b) const {
    if constexpr (std::is_floating_point_v<V>) {
      return a != a || b != b ? a + b : std::max(a, b);  // as vectors have it: what is not a number stays
    } else {
      return at::vec::maximum(a, b);
    }
  }
};

/// The Lanes of at(position, count) along n numbers, joined; a vector's places by themselves, and then from the first.
template <typename T, typename Join, typename At>
typename Lanes<T>::Math reduce(std::int64_t n, typename Lanes<T>::Math neutral, const Join& join, const At& at) {
  using Vec = typename Lanes<T>::Vec;
  Lanes<T> all;
  for (Vec& part : all.part) part = Vec(neutral);
  along<T>(n, [&](std::int64_t i, std::int64_t count) {
    const Lanes<T> next = at(i, count);
    for (int k = 0; k < Lanes<T>::kVecs; ++k) {
      const Vec joined = join(all.part[k], next.part[k]);
      const std::int64_t here = std::clamp(count - k * Lanes<T>::kVec, std::int64_t{0}, Lanes<T>::kVec);
      all.part[k] = here == Lanes<T>::kVec ? joined : Vec::set(all.part[k], joined, here);
    }
  });
  typename Lanes<T>::Math result = neutral;
  for (const Vec& part : all.part) {
    typename Lanes<T>::Math places[Lanes<T>::kVec];
    part.store(places);
    for (const auto place : places) result = join(result, place);
  }
  return result;
}

/// f(T{}) for the type of floating-point numbers; false for others.
template <typename F>
bool for_type(c10::ScalarType type, const F& f) {
  switch (type) {
    case c10::ScalarType::Float:
      f(float{});
      return true;
    case c10::ScalarType::Double:
      f(double{});
      return true;
    case c10::ScalarType::BFloat16:
      f(c10::BFloat16{});
      return true;
    case c10::ScalarType::Half:
      f(c10::Half{});
      return true;
    default:
      return false;
  }
}

}  // namespace CPU_CAPABILITY
}  // namespace snug::ops::kernels
