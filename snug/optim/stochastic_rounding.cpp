#include "snug/optim/stochastic_rounding.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <bit>
#include <cmath>

#include "snug/memory/owned_contents.h"
#include "snug/memory/parallel_for.h"

namespace snug::optim {
namespace {

constexpr std::int64_t kGrain = 1 << 14;

/// SplitMix64's mixing of a counter (Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t counter) {
  counter += 0x9e3779b97f4a7c15ULL;
  counter = (counter ^ (counter >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  counter = (counter ^ (counter >> 27U)) * 0x94d049bb133111ebULL;
  return counter ^ (counter >> 31U);
}

/// The upper half of a number's bits is its neighbour towards zero; `chance`, below 2^16, carries over in proportion to
/// the lower half.
c10::BFloat16 rounded(float number, std::uint32_t chance) {
  if (!std::isfinite(number)) return number;
  return {static_cast<unsigned short>((std::bit_cast<std::uint32_t>(number) + chance) >> 16U),
          c10::BFloat16::from_bits()};
}

}  // namespace

void round_stochastically(const at::Tensor& from, const at::Tensor& to, const RoundingChances& chances) {
  const at::Tensor numbers = from.contiguous();
  const at::Tensor whole = to.is_contiguous() ? to : at::empty(to.sizes(), to.options());
  const memory::ContentsThere from_there(numbers.storage()), to_there(whole.storage(), memory::Access::Write);
  const auto* const in = numbers.const_data_ptr<float>();
  auto* const out = whole.mutable_data_ptr<at::BFloat16>();
  const std::uint64_t stream = mixed(mixed(mixed(chances.seed) ^ chances.step) ^ chances.tensor);
  memory::parallel_for(0, numbers.numel(), kGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto chance =
          static_cast<std::uint32_t>(mixed(stream + chances.first + static_cast<std::uint64_t>(i)) & 0xffffU);
      out[i] = rounded(in[i], chance);
    }
  });
  if (whole.is_same(to)) {
    to.unsafeGetTensorImpl()->bump_version();
  } else {
    to.copy_(whole);
  }
}

}  // namespace snug::optim
