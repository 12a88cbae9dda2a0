#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {

/// Sessions and what they report. After bind_steps.
void bind_sessions(pybind11::module_& module);

}  // namespace snug::python
