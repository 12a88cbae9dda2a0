#include "snug/memory/device_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "snug/base/clock.h"

namespace snug::memory {

double seconds_when_done(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  return monotonic_seconds();
}

}  // namespace snug::memory
