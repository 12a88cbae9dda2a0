#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {

/// What _saved.py needs to give nodes of autograd.Function the tensors that the program saved.
void bind_saved(pybind11::module_& module);

}  // namespace snug::python
