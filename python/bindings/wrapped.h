#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {

/// set_unwrap(function): how tensors that are made of others are taken apart and made again, see _wrapped.py.
void bind_wrapped(pybind11::module_& module);

}  // namespace snug::python
