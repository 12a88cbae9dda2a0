#include "snug/base/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace snug {
namespace {

constexpr unsigned kBits = 32;
constexpr int kSmallest = -1074;  // the exponent of the smallest double above zero
constexpr unsigned kMantissa = 52;
constexpr std::uint64_t kLimb = 0xffffffffULL;

__extension__ using Wide = unsigned __int128;

}  // namespace

void ExactSum::add(double number) {
  if (!std::isfinite(number) || number < 0) {
    ++limbs_[std::isinf(number) && number > 0 ? kLimbs : kLimbs + 1];
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(number);
  const std::uint64_t exponent = (bits >> kMantissa) & 0x7ffU, fraction = bits & ((1ULL << kMantissa) - 1);
  const std::uint64_t place = exponent == 0 ? 0 : exponent - 1;  // from the smallest on
  const Wide mantissa = exponent == 0 ? fraction : fraction | (1ULL << kMantissa);
  Wide shifted = mantissa << (place % kBits);
  for (std::size_t limb = place / kBits; shifted != 0; ++limb, shifted >>= kBits)
    limbs_.at(limb) += static_cast<std::int64_t>(static_cast<std::uint64_t>(shifted) & kLimb);
}

void ExactSum::add(const ExactSum& other) {
  for (std::size_t i = 0; i < limbs_.size(); ++i)
    limbs_[i] += other.limbs_[i];  // NOLINT(*-bounds-constant-array-index)
}

double ExactSum::value() const {
  if (limbs_[kLimbs + 1] > 0) return std::numeric_limits<double>::quiet_NaN();
  if (limbs_[kLimbs] > 0) return std::numeric_limits<double>::infinity();
  std::array<std::uint64_t, kLimbs> carried{};
  std::int64_t carry = 0;
  for (std::size_t i = 0; i < kLimbs; ++i) {
    const std::int64_t sum = limbs_.at(i) + carry;
    carried.at(i) = static_cast<std::uint64_t>(sum) & kLimb;
    carry = sum >> kBits;
  }
  std::size_t top = kLimbs;
  while (top > 0 && carried.at(top - 1) == 0) --top;
  // The upper three have more bits than a double; of the rest it counts only whether there is any.
  Wide upper = 0;
  for (std::size_t i = 0; i < 3; ++i) upper = upper << kBits | (i < top ? carried.at(top - 1 - i) : 0);
  bool more = false;
  for (std::size_t i = 0; i + 3 < top; ++i) more = more || carried.at(i) != 0;
  const auto rounded = static_cast<double>(upper | (more ? 1U : 0U));
  return std::ldexp(rounded, static_cast<int>(kBits) * (static_cast<int>(top) - 3) + kSmallest);
}

}  // namespace snug
