#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {

/// Operators that keep less for the backward pass.
void bind_operators(pybind11::module_& module);

}  // namespace snug::python
