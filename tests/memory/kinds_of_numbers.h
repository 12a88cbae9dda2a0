#pragma once

#include <cmath>
#include <cstddef>
#include <functional>
#include <random>
#include <vector>

namespace snug::memory {

/// Normal, of all sizes, all alike, with one far away, tiny, zero.
inline std::vector<std::function<float(std::size_t)>> kinds_of_numbers(std::mt19937& random) {
  static std::normal_distribution<float> normal;
  return {[&random](std::size_t) { return normal(random); },
          [&random](std::size_t) { return std::ldexp(normal(random), static_cast<int>(random() % 200) - 100); },
          [](std::size_t) { return 3.25F; },
          [&random](std::size_t i) { return i % 50 == 7 ? -1e20F : normal(random); },
          [&random](std::size_t) { return 1000.0F + 1e-3F * normal(random); },
          [&random](std::size_t) { return 1e-39F * normal(random); },
          [](std::size_t i) { return i % 2 == 0 ? 0.0F : -0.0F; }};
}

}  // namespace snug::memory
