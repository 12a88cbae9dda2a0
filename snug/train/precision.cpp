#include "snug/train/precision.h"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace snug::train {

bool multiplies_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#elif defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return false;
#endif
}

Compute computed_in(Compute compute) {
  if (compute != Compute::Auto) return compute;
  return multiplies_bf16() ? Compute::Bf16 : Compute::Fp32;
}

}  // namespace snug::train
