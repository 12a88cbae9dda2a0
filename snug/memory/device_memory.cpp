#include "snug/memory/device_memory.h"

#include <c10/core/DeviceType.h>
#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/memory/cpu_memory.h"
#include "snug/memory/cuda_memory.h"

namespace snug::memory {

DeviceMemory& device_memory(c10::DeviceType device) {
  if (device == c10::kCPU) return CpuMemory::instance();
  if (device == c10::kCUDA) {
    if (DeviceMemory* cuda = cuda_memory()) return *cuda;
  }
  throw UsageError(
      fmt::format("memory: no backend for {} in this build; devices with one: CPU, and CUDA when LibTorch has it",
                  c10::DeviceTypeName(device)));
}

}  // namespace snug::memory
