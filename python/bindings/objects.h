#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {

/// The search for instances of classes in _objects.py, which is slow in Python: a process has hundreds of thousands of
/// objects.
void bind_objects(pybind11::module_& module);

}  // namespace snug::python
