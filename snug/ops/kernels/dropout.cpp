#include "snug/ops/kernels/declared.h"
#include "snug/ops/kernels/lanes.h"

namespace snug::ops::kernels::CPU_CAPABILITY {

void pack_bits(const std::uint8_t* bytes, std::uint8_t* bits, std::int64_t first, std::int64_t last) {
  for (std::int64_t i = first; i < last; ++i) {
    std::uint8_t packed = 0;
    for (int k = 0; k < 8; ++k) packed = static_cast<std::uint8_t>(packed | (bytes[8 * i + k] << k));
    bits[i] = packed;
  }
}

void times_bits(c10::ScalarType type, const MaskedNumbers& all, std::int64_t first, std::int64_t last) {
  for_type(type, [&](auto number) {
    using T = decltype(number);
    using L = Lanes<T>;
    using Math = typename L::Math;
    const T* const x = static_cast<const T*>(all.x);
    T* const y = static_cast<T*>(all.y);
    const auto kept = static_cast<Math>(all.kept);
    static_assert(L::kWidth % 8 == 0 || 8 % L::kWidth == 0);
    constexpr std::int64_t kStep = L::kWidth < 8 ? 8 : L::kWidth;
    const std::int64_t end = last * 8 < all.count ? last * 8 : all.count;
    for (std::int64_t i = first * 8; i < end; i += kStep) {
      Math factors[kStep];
      for (std::int64_t b = 0; b < kStep / 8; ++b) {
        const unsigned packed = i / 8 + b < last ? all.bits[i / 8 + b] : 0;
        for (unsigned k = 0; k < 8; ++k) factors[8 * b + k] = static_cast<Math>(packed >> k & 1) * kept;
      }
      for (std::int64_t k = 0; k < kStep && i + k < end; k += L::kWidth) {
        const std::int64_t here = std::min(L::kWidth, end - i - k);
        each<T>(Product{}, L::load(x + i + k, here), L::load_math(factors + k, here)).store(y + i + k, here);
      }
    }
  });
}

}  // namespace snug::ops::kernels::CPU_CAPABILITY
