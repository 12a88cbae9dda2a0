#pragma once

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>

namespace snug::python {

/// An object that threads without the interpreter's lock may release.
inline std::shared_ptr<pybind11::object> shared_object(pybind11::object object) {
  return {new pybind11::object(std::move(object)), [](pybind11::object* held) {
            const pybind11::gil_scoped_acquire gil;
            delete held;
          }};
}

}  // namespace snug::python
