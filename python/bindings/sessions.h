#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {
void bind_sessions(pybind11::module_& module);
}
