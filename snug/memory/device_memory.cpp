#include "snug/memory/device_memory.h"

#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/memory/cpu_memory.h"
#include "snug/memory/cuda_memory.h"

namespace snug::memory {

DeviceMemory& device_memory(c10::Device device) {
  if (device.is_cpu()) return CpuMemory::instance();
  if (device.is_cuda()) {
    if (DeviceMemory* cuda = cuda_memory(device.index())) return *cuda;
  }
  throw UsageError(fmt::format(
      "memory: no backend for {} in this build; devices with one: CPU, and CUDA when LibTorch has it", device.str()));
}

}  // namespace snug::memory
