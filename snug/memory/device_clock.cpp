#include "snug/memory/device_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "snug/base/clock.h"
#include "snug/memory/device_memory.h"

namespace snug::memory {

double seconds_when_done(c10::Device device) {
  if (device.is_cpu()) return monotonic_seconds();
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  return device_memory(device).own_seconds().value_or(monotonic_seconds());
}

}  // namespace snug::memory
