#pragma once

#include <torch/csrc/utils/pybind.h>

namespace snug::python {

/// C++ exceptions become those of snug.errors; an allocator that refuses raises snug.OutOfBudget wherever it is asked,
/// in plain PyTorch operators too. Called once, when the module is made.
void bind_errors(pybind11::module_& module);

/// Throws the Python exception that is caught as one that passes through LibTorch and comes out as itself.
[[noreturn]] void pass_on(pybind11::error_already_set& error);

}  // namespace snug::python
