#include "snug/record/denormals.h"

#include <ATen/Context.h>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace snug::record {

Denormals denormals() noexcept {
#if defined(__SSE__)
  const bool flushed = _MM_GET_FLUSH_ZERO_MODE() == _MM_FLUSH_ZERO_ON;
#elif defined(__aarch64__)
  std::uint64_t fpcr = 0;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  const bool flushed = (fpcr >> 24U & 1U) != 0;
#else
  const bool flushed = false;
#endif
  return flushed ? Denormals::Flushed : Denormals::Kept;
}

void DenormalScope::set(Denormals become) noexcept { at::Context::setFlushDenormal(become == Denormals::Flushed); }

}  // namespace snug::record
