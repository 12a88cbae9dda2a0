#pragma once

#include "snug/memory/device_memory.h"

namespace snug::memory {

/// The memory of the CUDA device with this index, through LibTorch's caching allocator. nullptr when this build of
/// LibTorch has no CUDA or the machine has no such GPU. Lives as long as the process. cuda_memory.cpp and
/// no_cuda_memory.cpp define it; CMake chooses one.
DeviceMemory* cuda_memory(c10::DeviceIndex index);

/// Whether this build knows GPUs.
bool built_for_cuda();

}  // namespace snug::memory
