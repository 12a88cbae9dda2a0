#include "snug/memory/device_memory.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/format.h>

#include "snug/base/errors.h"
#include "snug/memory/cpu_memory.h"
#include "snug/memory/cuda_memory.h"

namespace snug::memory {

c10::Device with_index(c10::Device device) {
  if (device.is_cpu()) return c10::kCPU;
  if (device.has_index() || !c10::impl::hasDeviceGuardImpl(device.type())) return device;
  const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
  return guard->deviceCount() > 0 ? guard->getDevice() : device;
}

DeviceMemory& device_memory(c10::Device device) {
  if (device.is_cpu()) return CpuMemory::instance();
  if (device.is_cuda()) {
    if (DeviceMemory* cuda = cuda_memory(with_index(device).index())) return *cuda;
  }
  throw UsageError(fmt::format(
      "memory: no backend for {} in this build; devices with one: CPU, and CUDA when LibTorch has it", device.str()));
}

}  // namespace snug::memory
