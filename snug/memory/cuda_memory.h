#pragma once

#include "snug/memory/device_memory.h"

namespace snug::memory {

/// The memory of a CUDA device, the current one for an index below 0, through LibTorch's caching allocator. nullptr
/// when this build of LibTorch has no CUDA or the machine has no such GPU. Lives as long as the process.
/// cuda_memory.cpp and no_cuda_memory.cpp define it; CMake chooses one.
DeviceMemory* cuda_memory(c10::DeviceIndex device);

}  // namespace snug::memory
