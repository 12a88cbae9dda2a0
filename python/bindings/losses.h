#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {

/// Losses that save memory.
void bind_losses(pybind11::module_& module);

}  // namespace snug::python
