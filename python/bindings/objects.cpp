#include "python/bindings/objects.h"

#include <algorithm>
#include <vector>

namespace snug::python {
namespace {

namespace py = pybind11;

/// `kinds`: classes that are defined in Python. By type alone: nothing of the objects is run, and a __subclasscheck__
/// is not asked.
py::list instances_among(const py::list& objects, const std::vector<py::type>& kinds) {
  py::list instances;
  for (const py::handle object : objects) {
    PyTypeObject* const type = Py_TYPE(object.ptr());
    if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) == 0) continue;  // functions, tuples and such: most objects
    const auto is_of = [&](const py::type& kind) {
      return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(kind.ptr())) != 0;
    };
    if (std::ranges::any_of(kinds, is_of)) instances.append(object);
  }
  return instances;
}

}  // namespace

void bind_objects(py::module_& module) { module.def("instances_among", &instances_among); }

}  // namespace snug::python
