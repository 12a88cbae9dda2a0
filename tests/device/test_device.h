#pragma once

#include <c10/core/Device.h>

#include "snug/memory/device_memory.h"

namespace snug::testing {

/// The device that tests make their tensors on: SNUG_TEST_DEVICE, "cpu" unless it is set. When it is another, factories
/// that are told no device make tensors there (for those that are given numbers, such as torch::tensor, a test says it
/// itself), as with torch.set_default_device in Python.
c10::Device test_device();

/// Its memory.
inline memory::DeviceMemory& test_memory() { return memory::device_memory(test_device()); }

}  // namespace snug::testing
