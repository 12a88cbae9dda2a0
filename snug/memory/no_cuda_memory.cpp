#include "snug/memory/cuda_memory.h"

namespace snug::memory {

DeviceMemory* cuda_memory() { return nullptr; }

}  // namespace snug::memory
