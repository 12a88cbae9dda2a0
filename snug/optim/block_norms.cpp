#include "snug/optim/block_norms.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

namespace snug::optim {
namespace {

constexpr std::size_t kLanes = 8;

struct Absolute {
  double operator()(double x) const { return std::abs(x); }
};
struct Square {
  double operator()(double x) const { return x * x; }
};

template <class Number, class Of>
double sum_of_block(const Number* numbers, std::size_t count, const Of& of) {
  std::array<double, kLanes> lanes{};
  const std::size_t whole = count / kLanes * kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += of(static_cast<double>(numbers[i + lane]));
  }
  for (std::size_t i = whole; i < count; ++i) lanes[i - whole] += of(static_cast<double>(numbers[i]));
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

template <class Number, class Of>
void each_block(std::span<const Number> numbers, const Of& of, const std::function<void(double)>& add) {
  constexpr auto kBlock = static_cast<std::size_t>(kNormBlock);
  for (std::size_t i = 0; i < numbers.size(); i += kBlock)
    add(sum_of_block(numbers.data() + i, std::min(kBlock, numbers.size() - i), of));
}

}  // namespace

template <class Number>
void add_blocks(std::span<const Number> numbers, Amount amount, const std::function<void(double)>& add) {
  if (amount == Amount::Square) return each_block(numbers, Square{}, add);
  each_block(numbers, Absolute{}, add);
}

template <class Number>
double largest_amount(std::span<const Number> numbers) {
  double largest = 0;
  for (const Number number : numbers) {
    const double amount = std::abs(static_cast<double>(number));
    if (std::isnan(amount)) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, amount);
  }
  return largest;
}

#define SNUG_NUMBERS(Number)                                                                     \
  template void add_blocks(std::span<const Number>, Amount, const std::function<void(double)>&); \
  template double largest_amount(std::span<const Number>);
SNUG_NUMBERS(float)
SNUG_NUMBERS(double)
SNUG_NUMBERS(c10::BFloat16)
SNUG_NUMBERS(c10::Half)
#undef SNUG_NUMBERS

}  // namespace snug::optim
