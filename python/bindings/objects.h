#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {

/// The search among Python's objects that _objects.py asks for: there are hundreds of thousands.
void bind_objects(pybind11::module_& module);

}  // namespace snug::python
