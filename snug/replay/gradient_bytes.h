#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "snug/memory/device_memory.h"

namespace snug::replay {

/// That gradients of these take on the device. Several may be views of one storage, as DistributedDataParallel has
/// them.
Bytes gradient_bytes(const std::vector<at::Tensor>& parameters, const memory::DeviceMemory& memory);

}  // namespace snug::replay
