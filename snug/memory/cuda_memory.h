#pragma once

#include "snug/memory/device_memory.h"

namespace snug::memory {

/// The memory of the current CUDA device through LibTorch's caching allocator, or nullptr when this build of LibTorch
/// has no CUDA or the machine has no GPU. cuda_memory.cpp and no_cuda_memory.cpp define it; CMake chooses one.
DeviceMemory* cuda_memory();

}  // namespace snug::memory
