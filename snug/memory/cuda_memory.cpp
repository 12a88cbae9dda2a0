#include "snug/memory/cuda_memory.h"

#include "snug/memory/cuda_allocator.h"

namespace snug::memory {
namespace {

/// When the library is loaded, so that weights made before the first use of snug count too.
[[maybe_unused]] const bool kCudaInstalled = (install_cuda_allocator(), true);

}  // namespace

DeviceMemory* cuda_memory(c10::DeviceIndex index) { return counted_cuda_memory(index); }

bool built_for_cuda() { return true; }

}  // namespace snug::memory
