// Tensors of Python around others, as saved-tensor hooks take them apart.
#include "python/bindings/wrapped.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "python/bindings/errors.h"
#include "snug/record/recording.h"
#include "snug/replay/rerun_frame.h"
#include "snug/replay/unpacked_originals.h"
#include "snug/replay/wrapped_tensor.h"

namespace snug::python {
namespace {

namespace py = pybind11;

PyObject* s_unwrap = nullptr;  // for as long as the process lives

/// An object that threads without the interpreter's lock may let go of.
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

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
    const std::shared_ptr<py::object> held = shared(std::move(wrap));
    return replay::WrappedTensor{.inside = std::move(inside), .wrap = [held](const std::vector<at::Tensor>& parts) {
                                   return wrapped_in(*held, parts);
                                 }};
  } catch (py::error_already_set& error) {
    pass_on(error);
  }
}

}  // namespace

/// Calls `get`, which unpacks saved tensors, and replaces each tensor that autograd made by the one the program saved.
py::object with_originals(const py::function& get) {
  const replay::UnpackedOriginals originals;
  const py::object unpacked = get();
  if (!py::isinstance<py::tuple>(unpacked)) return unpacked;
  py::tuple all = unpacked;
  py::tuple result(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const py::object one = all[i];
    result[i] = one.is_none() ? one : py::cast(originals.original_of(one.cast<at::Tensor>()));
  }
  return result;
}

/// Whether what autograd saves on this thread, for an operator that runs now, is packed here before anything else.
bool packs_saved_tensors() {
  if (record::PythonHooksOutside::any_inside()) return false;
  return replay::innermost_rerun_frame() || record::recording_tape();
}

void bind_wrapped(py::module_& module) {
  module.def("packs_saved_tensors", &packs_saved_tensors);
  module.def("with_originals", &with_originals, py::arg("get"));
  module.def(
      "set_unwrap",
      [](py::object function) {
        s_unwrap = function.release().ptr();
        replay::set_unwrap(&unwrap);
      },
      py::arg("function"));
}

}  // namespace snug::python
