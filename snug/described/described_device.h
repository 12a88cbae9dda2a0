#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "snug/described/device_description.h"
#include "snug/described/stream_clock.h"

namespace snug::described {

/// A device that is not here: its tensors have sizes, types and bytes that are counted, and no contents. Operators
/// make tensors of the sizes that they make, on a clock that kernel_seconds() advances, so that steps can be recorded
/// and planned for it: numbers that the program reads from it are 0, whole ones 1, and what depends on others cannot be
/// told.
///
/// It is on the key that LibTorch keeps for MAIA, which nobody else uses here, beside CUDA or without it. Operators are
/// those of CUDA as far as LibTorch's front end chooses between them (attention), and take no memory beside their
/// results. They draw nothing from the generator of the CPU, which stands for the device's.

inline constexpr c10::DeviceType kDescribed = c10::DeviceType::MAIA;

/// Puts it in place for the life of the process, or another description in the place of one before. Throws UsageError
/// where there are still tensors of that one. Returns the device.
c10::Device install(const DeviceDescription& description);

/// The device of install().
const DeviceDescription& description();
/// Its clock.
StreamClock& stream_clock();
/// The calling thread's.
c10::StreamId current_stream();

/// As long as this lives the device has as much memory as is asked for: whole models are made there before each process
/// of several keeps its part, and steps are recorded that do not fit, to say what they need.
class AnyAmountOfMemory {
 public:
  AnyAmountOfMemory();
  ~AnyAmountOfMemory();
  AnyAmountOfMemory(const AnyAmountOfMemory&) = delete;
  AnyAmountOfMemory& operator=(const AnyAmountOfMemory&) = delete;
};

}  // namespace snug::described
