// Saved tensors of autograd.Function: their identity, class and attributes.
#include "python/bindings/saved.h"

#include <pybind11/stl.h>

#include <memory>
#include <unordered_map>
#include <vector>

#include "python/bindings/errors.h"
#include "python/bindings/shared_object.h"
#include "snug/record/recording.h"
#include "snug/replay/rerun_frame.h"
#include "snug/replay/unpacked_originals.h"

namespace snug::python {
namespace {

namespace py = pybind11;

// For as long as the process lives.
PyObject* s_look_of = nullptr;
PyObject* s_with_look = nullptr;

/// How often each tensor will still be packed on this thread. An entry of a Function whose forward has thrown is stale:
/// another tensor at the same address then has its attributes read once more than needed.
thread_local std::unordered_map<const c10::TensorImpl*, int> t_expected;
constexpr std::size_t kMostExpected = 1 << 16;

std::shared_ptr<void> look_of(const at::Tensor& tensor) {
  if (t_expected.empty()) return nullptr;
  const auto expected = t_expected.find(tensor.unsafeGetTensorImpl());
  if (expected == t_expected.end()) return nullptr;
  if (--expected->second == 0) t_expected.erase(expected);
  const py::gil_scoped_acquire gil;
  try {
    py::object look = py::reinterpret_borrow<py::object>(s_look_of)(tensor);
    return look.is_none() ? nullptr : shared_object(std::move(look));
  } catch (py::error_already_set& error) {
    pass_on(error);
  }
}

void expect_looks(const std::vector<at::Tensor>& tensors) {
  if (record::PythonHooksOutside::any_inside()) return;  // the program's hooks are asked, and not ours
  if (!replay::innermost_rerun_frame() && !record::recording_tape()) return;
  if (t_expected.size() > kMostExpected) t_expected.clear();
  for (const at::Tensor& tensor : tensors) ++t_expected[tensor.unsafeGetTensorImpl()];
}

py::object with_original(const py::object& unpacked, const replay::Original& original) {
  if (original.tensor.defined()) return py::cast(original.tensor);
  if (!original.look) return unpacked;
  return py::reinterpret_borrow<py::object>(s_with_look)(unpacked, *static_cast<py::object*>(original.look.get()));
}

/// Calls `get`, which unpacks saved tensors, and replaces each tensor that autograd made by the one the program saved,
/// or gives it that one's class and attributes.
py::object with_originals(const py::function& get) {
  const replay::UnpackedOriginals originals;
  const py::object unpacked = get();
  if (!py::isinstance<py::tuple>(unpacked)) return unpacked;
  const py::tuple all = unpacked;
  std::size_t tensors = 0;
  for (const py::handle one : all) tensors += one.is_none() ? 0 : 1;
  if (tensors != originals.in_order().size()) return unpacked;  // saved without hooks, or with the program's
  py::tuple result(all.size());
  auto original = originals.in_order().begin();
  for (std::size_t i = 0; i < all.size(); ++i) {
    const py::object one = all[i];
    result[i] = one.is_none() ? one : with_original(one, *original++);
  }
  return result;
}

}  // namespace

void bind_saved(py::module_& module) {
  module.def("expect_looks", &expect_looks, py::arg("tensors"));
  module.def("with_originals", &with_originals, py::arg("get"));
  module.def(
      "set_looks",
      [](py::object look_of_tensor, py::object with_look) {
        s_look_of = look_of_tensor.release().ptr();
        s_with_look = with_look.release().ptr();
        replay::set_look(&look_of);
      },
      py::arg("look_of"), py::arg("with_look"));
}

}  // namespace snug::python
