#include "snug/ops/kernels/declared.h"
#include "snug/ops/kernels/lanes.h"

// Number by number as x * cosines + turned * sines, and its derivative, of operators of LibTorch.
namespace snug::ops::kernels::CPU_CAPABILITY {
namespace {

/// Where a head of one position stands: rows are counted through batches, positions and heads.
struct Place {
  std::int64_t x, y, angle;
};

Place place_of(const RotatedHeads& all, std::int64_t row) {
  const std::int64_t head = row % all.heads, rest = row / all.heads;
  const std::int64_t position = rest % all.positions, batch = rest / all.positions;
  return {.x = batch * all.x_strides[0] + head * all.x_strides[1] + position * all.x_strides[2],
          .y = batch * all.y_strides[0] + head * all.y_strides[1] + position * all.y_strides[2],
          .angle = batch * all.angles_of_batch + position * all.width};
}

/// Numbers of y's type R, which is T or what T is computed in.
template <typename T, typename R>
struct Results {
  using L = Lanes<T>;
  static L load(const R* from, std::int64_t count) {
    if constexpr (std::is_same_v<R, T>) {
      return L::load(from, count);
    } else {
      return L::load_math(from, count);
    }
  }
  static L rounded(const L& all) {
    if constexpr (std::is_same_v<R, T>) {
      return all.rounded();
    } else {
      return all;
    }
  }
  static void store(const L& all, R* to, std::int64_t count) {
    if constexpr (std::is_same_v<R, T>) {
      all.store(to, count);
    } else {
      all.store_math(to, count);
    }
  }
};

struct Negated {
  template <typename V>
  V operator()(const V& a) const {
    return a.neg();
  }
};

template <typename T, typename R>
void rotate_row(const RotatedHeads& all, std::int64_t row) {
  using L = Lanes<T>;
  using Of = Results<T, R>;
  const Place at = place_of(all, row);
  const std::int64_t half = all.width / 2;
  const T* const x = static_cast<const T*>(all.x) + at.x;
  R* const y = static_cast<R*>(all.y) + at.y;
  const R *const cosines = static_cast<const R*>(all.cosines) + at.angle, *const sines =
                                                                              static_cast<const R*>(all.sines) +
                                                                              at.angle;
  const auto turn = [&](const L& straight, const L& turned, std::int64_t i, std::int64_t count) {
    const L a = Of::rounded(each<T>(Product{}, straight, Of::load(cosines + i, count)));
    const L b = Of::rounded(each<T>(Product{}, turned, Of::load(sines + i, count)));
    Of::store(each<T>(Sum{}, a, b), y + i, count);
  };
  along<T>(half, [&](std::int64_t i, std::int64_t count) {
    const L low = L::load(x + i, count), high = L::load(x + half + i, count);
    turn(low, each<T>(Negated{}, high), i, count);
    turn(high, low, half + i, count);
  });
}

/// Each of the two products is rounded to T, and their sum again, as gradients are that come together.
template <typename T, typename R>
void rotate_row_back(const RotatedHeads& all, std::int64_t row) {
  using L = Lanes<T>;
  using Of = Results<T, R>;
  const Place at = place_of(all, row);
  const std::int64_t half = all.width / 2;
  T* const of_x = static_cast<T*>(all.of_x) + at.x;
  const R* const of_y = static_cast<const R*>(all.y) + at.y;
  const R *const cosines = static_cast<const R*>(all.cosines) + at.angle, *const sines =
                                                                              static_cast<const R*>(all.sines) +
                                                                              at.angle;
  const auto product = [&](const L& a, const R* angles, std::int64_t i, std::int64_t count) {
    return each<T>(Product{}, a, Of::load(angles + i, count)).rounded();
  };
  along<T>(half, [&](std::int64_t i, std::int64_t count) {
    const L low = Of::load(of_y + i, count), high = Of::load(of_y + half + i, count);
    each<T>(Sum{}, product(low, cosines, i, count), product(high, sines, half + i, count)).store(of_x + i, count);
    each<T>(Sum{}, product(high, cosines, half + i, count), each<T>(Negated{}, product(low, sines, i, count)))
        .store(of_x + half + i, count);
  });
}

/// visit(T, R)
template <typename Visit>
void for_types(c10::ScalarType type, const RotatedHeads& all, const Visit& visit) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    if (all.y_type == type) return visit(T{}, T{});
    if constexpr (Lanes<T>::kShort) visit(T{}, float{});
  });
}

}  // namespace

void rotate(c10::ScalarType type, const RotatedHeads& all, std::int64_t first, std::int64_t last) {
  for_types(type, all, [&](auto t, auto r) {
    for (std::int64_t row = first; row < last; ++row) rotate_row<decltype(t), decltype(r)>(all, row);
  });
}

void rotate_back(c10::ScalarType type, const RotatedHeads& all, std::int64_t first, std::int64_t last) {
  for_types(type, all, [&](auto t, auto r) {
    for (std::int64_t row = first; row < last; ++row) rotate_row_back<decltype(t), decltype(r)>(all, row);
  });
}

}  // namespace snug::ops::kernels::CPU_CAPABILITY
