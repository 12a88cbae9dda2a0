#include "python/bindings/objects.h"

#include <algorithm>
#include <vector>

namespace snug::python {
namespace {

namespace py = pybind11;

/// By type alone: nothing of the objects is run. Classes with a __subclasscheck__ of their own are not asked.
py::list instances_among(const py::list& objects, const std::vector<py::type>& kinds) {
  py::list instances;
  for (const py::handle object : objects) {
    const auto is_of = [&](const py::type& kind) {
      return PyType_IsSubtype(Py_TYPE(object.ptr()), reinterpret_cast<PyTypeObject*>(kind.ptr())) != 0;
    };
    if (std::ranges::any_of(kinds, is_of)) instances.append(object);
  }
  return instances;
}

}  // namespace

void bind_objects(py::module_& module) { module.def("instances_among", &instances_among); }

}  // namespace snug::python
