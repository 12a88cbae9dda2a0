#pragma once

#include "snug/memory/accelerator_memory.h"

namespace snug::memory {

/// Puts an AcceleratorMemory for each device in front of the blocks of LibTorch's allocator for CUDA, to the end of the
/// process: LibTorch goes on to hand out, cache and order them by stream, and each is counted first. All else is
/// LibTorch's. What it has handed out before goes back to it uncounted, and so do blocks of pools at chosen addresses.
/// Starts nothing on a GPU, so that processes may fork after it. Again does nothing. Any thread.
void install_cuda_allocator();

/// The memory of a device; nullptr: the machine has no such device. Throws UsageError when another allocator has been
/// put in the place of this one. Any thread.
AcceleratorMemory* counted_cuda_memory(c10::DeviceIndex device);

}  // namespace snug::memory
