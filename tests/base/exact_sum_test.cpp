#include "snug/base/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace snug {
namespace {

double sum_of(const std::vector<double>& numbers) {
  ExactSum sum;
  for (const double n : numbers) sum.add(n);
  return sum.value();
}

/// From the smallest to the largest amounts that squares of fp32 have.
std::vector<double> anything(std::size_t count, std::mt19937& random) {
  std::uniform_real_distribution<double> mantissa(0, 1);
  std::uniform_int_distribution<int> exponent(-298, 256);
  std::vector<double> numbers;
  for (std::size_t i = 0; i < count; ++i) numbers.push_back(std::ldexp(mantissa(random), exponent(random)));
  return numbers;
}

TEST(ExactSum, IsTheSameInAnyOrderAndInAnyParts) {
  std::mt19937 random(1);  // NOLINT: the same each time
  for (int i = 0; i < 200; ++i) {
    std::vector<double> numbers = anything(300, random);
    const double sum = sum_of(numbers);
    std::ranges::shuffle(numbers, random);
    EXPECT_EQ(sum_of(numbers), sum);
    const std::size_t cut = random() % numbers.size();
    ExactSum first, second;
    for (std::size_t k = 0; k < numbers.size(); ++k) (k < cut ? first : second).add(numbers[k]);
    first.add(second);
    EXPECT_EQ(first.value(), sum);
  }
}

TEST(ExactSum, IsRoundedOnceToTheNearest) {
  EXPECT_EQ(sum_of({}), 0);
  EXPECT_EQ(sum_of({0.1, 0.2}), 0.1 + 0.2);
  EXPECT_EQ(sum_of({1, std::ldexp(1, -53)}), 1) << "half of the last place: to the even one";
  EXPECT_EQ(sum_of({1, std::ldexp(1, -53), std::ldexp(1, -300)}), std::nextafter(1, 2)) << "more than half";
  EXPECT_EQ(sum_of({1, std::ldexp(1, -53), std::ldexp(1, -53)}), std::nextafter(1, 2)) << "which one by one is lost";
  std::mt19937 random(2);  // NOLINT: the same each time
  for (int i = 0; i < 1000; ++i) {
    const std::vector<double> two = anything(2, random);
    EXPECT_EQ(sum_of(two), two[0] + two[1]);
  }
}

TEST(ExactSum, HoldsTheSmallestAndTheLargest) {
  const double tiny = std::numeric_limits<double>::denorm_min(), huge = std::numeric_limits<double>::max();
  EXPECT_EQ(sum_of({tiny, tiny, tiny}), 3 * tiny);
  EXPECT_EQ(sum_of({huge}), huge);
  EXPECT_EQ(sum_of({huge, huge}), std::numeric_limits<double>::infinity());
  EXPECT_EQ(sum_of(std::vector<double>(1 << 20, 3.0)), 3.0 * (1 << 20));
}

TEST(ExactSum, SaysWhatWasNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(sum_of({1, inf}), inf);
  EXPECT_TRUE(std::isnan(sum_of({inf, std::nan("")})));
  EXPECT_TRUE(std::isnan(sum_of({1, -1})));
}

}  // namespace
}  // namespace snug
