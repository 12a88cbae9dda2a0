// Tensors of Python around others, as saved-tensor hooks take them apart.
#include "python/bindings/wrapped.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "python/bindings/errors.h"
#include "python/bindings/shared_object.h"
#include "snug/replay/wrapped_tensor.h"

namespace snug::python {
namespace {

namespace py = pybind11;

PyObject* s_unwrap = nullptr;  // for as long as the process lives

at::Tensor wrapped_in(const py::object& wrap, const std::vector<at::Tensor>& parts) {
  const py::gil_scoped_acquire gil;
  try {
    return wrap(parts).cast<at::Tensor>();
  } catch (py::error_already_set& error) {
    pass_on(error);
  }
}

std::optional<replay::WrappedTensor> unwrap(const at::Tensor& tensor) {
  const py::gil_scoped_acquire gil;
  try {
    const py::object apart = py::reinterpret_borrow<py::object>(s_unwrap)(tensor);
    if (apart.is_none()) return std::nullopt;
    auto [inside, wrap] = apart.cast<std::pair<std::vector<at::Tensor>, py::object>>();
    const std::shared_ptr<py::object> held = shared_object(std::move(wrap));
    return replay::WrappedTensor{.inside = std::move(inside), .wrap = [held](const std::vector<at::Tensor>& parts) {
                                   return wrapped_in(*held, parts);
                                 }};
  } catch (py::error_already_set& error) {
    pass_on(error);
  }
}

}  // namespace

void bind_wrapped(py::module_& module) {
  module.def(
      "set_unwrap",
      [](py::object function) {
        s_unwrap = function.release().ptr();
        replay::set_unwrap(&unwrap);
      },
      py::arg("function"));
}

}  // namespace snug::python
