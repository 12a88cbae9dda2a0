#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {

/// Tensors whose contents live in a tier: StreamedTensors.
void bind_streaming(pybind11::module_& module);

}  // namespace snug::python
