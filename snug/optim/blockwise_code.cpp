#include "snug/optim/blockwise_code.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace snug::optim {
namespace {

constexpr int kPowers = 7;
/// Of a number's bits that say where to begin to look: with seven bits of fraction, few codes lie between.
constexpr unsigned kLowerBits = 16;
/// As many numbers of each sign have different upper bits up to one.
constexpr std::uint32_t kUpperParts = (std::bit_cast<std::uint32_t>(1.0F) >> kLowerBits) + 1;

}  // namespace

BlockwiseCode::BlockwiseCode(bool sign) {
  std::vector<float> values{0.0F, 1.0F};
  for (int power = 0; power < kPowers; ++power) {
    // The middles of as many equal parts of the numbers from 0.1 to 1, times a power of ten.
    const int parts = sign ? 1 << power : 2 << power;
    const double factor = std::pow(10.0, power - (kPowers - 1));
    for (int part = 0; part < parts; ++part) {
      const double middle = 0.1 + 0.9 * (part + 0.5) / parts;
      values.push_back(static_cast<float>(factor * middle));
      if (sign) values.push_back(-static_cast<float>(factor * middle));
    }
  }
  std::ranges::sort(values);
  std::ranges::copy(values, values_.begin());
  for (std::size_t i = 0; i + 1 < values_.size(); ++i) up_to_[i] = (values_[i] + values_[i + 1]) / 2;
  up_to_.back() = std::numeric_limits<float>::infinity();
  const auto code_of = [&](float number) {
    return static_cast<std::uint8_t>(std::ranges::lower_bound(up_to_, number) - up_to_.begin());
  };
  for (std::uint32_t upper = 0; upper < kUpperParts; ++upper)
    first_.push_back(code_of(std::bit_cast<float>(upper << kLowerBits)));
  for (std::uint32_t upper = 0; upper < kUpperParts; ++upper) {
    // The largest in amount are the smallest.
    const std::uint32_t last = (upper << kLowerBits) | ((1U << kLowerBits) - 1);
    first_.push_back(code_of(-std::bit_cast<float>(last)));
  }
}

const BlockwiseCode& BlockwiseCode::with_sign() {
  static const BlockwiseCode code(true);
  return code;
}

const BlockwiseCode& BlockwiseCode::without_sign() {
  static const BlockwiseCode code(false);
  return code;
}

std::uint8_t BlockwiseCode::nearest(float number) const {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t upper = (bits & 0x7fffffffU) >> kLowerBits;
  if (upper >= kUpperParts) return number > 0 ? 255 : 0;  // beyond one, or no number
  std::uint8_t code = first_[upper + ((bits >> 31U) != 0 ? kUpperParts : 0)];
  while (number > up_to_[code]) ++code;
  return code;
}

}  // namespace snug::optim
