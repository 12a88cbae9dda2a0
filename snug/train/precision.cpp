#include "snug/train/precision.h"

#include <ATen/Context.h>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "snug/memory/device_memory.h"
#include "snug/train/config.h"

namespace snug::train {
namespace {

bool processor_multiplies_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#elif defined(__aarch64__) && defined(__linux__)
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return false;
#endif
}

}  // namespace

bool multiplies_bf16(c10::DeviceType device) {
  if (device == c10::kCPU) return processor_multiplies_bf16();
  // The same generation that convolves in it.
  return device == c10::kCUDA && at::hasCUDA() && at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8();
}

Compute computed_in(Compute compute, c10::DeviceType device) {
  if (compute != Compute::Auto) return compute;
  return multiplies_bf16(device) ? Compute::Bf16 : Compute::Fp32;
}

Compute computed_in(const Config& config) {
  return computed_in(config.precision.compute, memory::device_named(config.train.device).type());
}

plan::Codec codec_of(Activations activations) {
  switch (activations) {
    case Activations::Exact:
      break;
    case Activations::Bf16:
      return plan::Codec::BFloat16;
    case Activations::Fp8:
      return plan::Codec::Float8;
    case Activations::Int8:
      return plan::Codec::Int8;
    case Activations::Int4:
      return plan::Codec::Int4;
  }
  return plan::Codec::None;
}

}  // namespace snug::train
