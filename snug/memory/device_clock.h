#pragma once

#include <c10/core/Device.h>

namespace snug::memory {

/// As monotonic_seconds(), or as the device's own clock has it (see DeviceMemory::own_seconds()), once the device has
/// done all that it was given: kernels of accelerators run on after their call has returned.
double seconds_when_done(c10::Device device);

}  // namespace snug::memory
