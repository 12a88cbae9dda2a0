#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {
/// Agreement, by a Python function that gathers votes.
void bind_agreement(pybind11::module_& module);
}  // namespace snug::python
