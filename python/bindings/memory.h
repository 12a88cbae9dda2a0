#pragma once

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "snug/memory/device_memory.h"
#include "snug/memory/tag.h"

namespace snug::python {

void bind_memory(pybind11::module_& module);

/// By the names of tags.
pybind11::dict to_dict(const memory::ByTag& bytes);
/// Of the device that the text names. Throws UsageError.
memory::DeviceMemory& device_memory(const std::string& device);

}  // namespace snug::python
