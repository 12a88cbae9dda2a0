// Saved tensors of autograd.Function: their identity, class and attributes.
#include "python/bindings/saved.h"

#include <pthread.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
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

/// The node that made a tensor; of a custom autograd.Function that is its `ctx`. Needs the GIL.
py::object node_of(const at::Tensor& tensor) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);  // grad_fn() may throw for a view
  if (meta == nullptr || !meta->grad_fn_) return py::none();
  return py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(meta->grad_fn_));
}

/// The tensors that autograd.Functions have passed to save_for_backward, with the `ctx` of each.
class SavedByFunctions {
 public:
  void add(const c10::TensorImpl* tensor, const PyObject* function) {
    const std::lock_guard lock(mutex_);
    functions_.emplace(tensor, function);
    ++size_;
  }
  void remove(const c10::TensorImpl* tensor, const PyObject* function) {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = functions_.equal_range(tensor);
    const auto found = std::find_if(first, last, [&](const auto& entry) { return entry.second == function; });
    if (found == last) return;
    functions_.erase(found);
    --size_;
  }
  [[nodiscard]] std::vector<const PyObject*> functions_of(const at::Tensor& tensor) {
    std::vector<const PyObject*> functions;
    if (size_ == 0) return functions;
    const std::lock_guard lock(mutex_);
    const auto [first, last] = functions_.equal_range(tensor.unsafeGetTensorImpl());
    std::transform(first, last, std::back_inserter(functions), [](const auto& entry) { return entry.second; });
    return functions;
  }

  static SavedByFunctions& of_this_process() { return *s_of_this_process; }
  /// In the child of a fork, where a thread that is not there may hold the mutex.
  static void begin_anew() { s_of_this_process = new SavedByFunctions; }

 private:
  std::mutex mutex_;
  std::unordered_multimap<const c10::TensorImpl*, const PyObject*> functions_;
  std::atomic<std::size_t> size_ = 0;

  static SavedByFunctions* s_of_this_process;  // never freed, as nodes may outlive main()
};

SavedByFunctions* SavedByFunctions::s_of_this_process = new SavedByFunctions;
[[maybe_unused]] const int kAtFork = ::pthread_atfork(nullptr, nullptr, &SavedByFunctions::begin_anew);

/// Stored as an attribute of `ctx`. While it lives, packing one of these tensors also keeps the tensor's class and
/// attributes. Holds weak references, so that no other tensor gets their addresses and no contents stay alive.
class ExpectedLooks {
 public:
  ExpectedLooks(const py::object& function, const std::vector<at::Tensor>& tensors) : function_(function.ptr()) {
    if (record::PythonHooksOutside::any_inside()) return;  // the program's hooks are asked, and not ours
    if (!replay::innermost_rerun_frame() && !record::recording_tape()) return;
    for (const at::Tensor& tensor : tensors) {
      tensors_.emplace_back(tensor.getIntrusivePtr());
      SavedByFunctions::of_this_process().add(tensor.unsafeGetTensorImpl(), function_);
    }
  }
  ~ExpectedLooks() {
    for (const auto& tensor : tensors_)
      SavedByFunctions::of_this_process().remove(tensor._unsafe_get_target(), function_);
  }
  ExpectedLooks(const ExpectedLooks&) = delete;
  ExpectedLooks& operator=(const ExpectedLooks&) = delete;

 private:
  const PyObject* function_;  // which this is an attribute of
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, at::UndefinedTensorImpl>> tensors_;
};

std::shared_ptr<void> look_of(const at::Tensor& tensor) {
  const std::vector<const PyObject*> functions = SavedByFunctions::of_this_process().functions_of(tensor);
  if (functions.empty()) return nullptr;
  const py::gil_scoped_acquire gil;
  try {
    // Of its own result autograd gives a function a new tensor: to keep the attributes here would be a cycle.
    const py::object maker = node_of(tensor);
    const auto is_maker = [&](const PyObject* function) { return function == maker.ptr(); };
    if (std::ranges::all_of(functions, is_maker)) return nullptr;
    py::object look = py::reinterpret_borrow<py::object>(s_look_of)(tensor);
    return look.is_none() ? nullptr : shared_object(std::move(look));
  } catch (py::error_already_set& error) {
    pass_on(error);
  }
}

py::object with_original(const py::object& function, const py::object& unpacked, const replay::Original& original) {
  // A result of the function itself: autograd makes a new tensor in any case.
  if (node_of(THPVariable_Unpack(unpacked.ptr())).is(function)) return unpacked;
  if (original.tensor.defined()) return py::cast(original.tensor);
  if (!original.look) return unpacked;
  return py::reinterpret_borrow<py::object>(s_with_look)(unpacked, *static_cast<py::object*>(original.look.get()));
}

/// Calls `get`, which unpacks the saved tensors of a `ctx`, and replaces each tensor that autograd made by the one the
/// program saved, or gives it that one's class and attributes.
py::object with_originals(const py::object& function, const py::function& get) {
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
    result[i] = one.is_none() ? one : with_original(function, one, *original++);
  }
  return result;
}

}  // namespace

void bind_saved(py::module_& module) {
  py::class_<ExpectedLooks>(module, "ExpectedLooks")
      .def(py::init<const py::object&, const std::vector<at::Tensor>&>(), py::arg("function"), py::arg("tensors"));
  module.def("with_originals", &with_originals, py::arg("function"), py::arg("get"));
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
