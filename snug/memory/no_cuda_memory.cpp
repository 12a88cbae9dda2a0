#include "snug/memory/cuda_memory.h"

namespace snug::memory {

DeviceMemory* cuda_memory(c10::DeviceIndex /*index*/) { return nullptr; }
bool built_for_cuda() { return false; }

}  // namespace snug::memory
