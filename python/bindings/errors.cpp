#include "python/bindings/errors.h"

#include <torch/csrc/Exceptions.h>

#include <exception>
#include <string>

#include "python/bindings/memory.h"
#include "snug/base/errors.h"
#include "snug/base/front_end.h"
#include "snug/memory/out_of_budget.h"
#include "snug/plan/does_not_fit.h"
#include "snug/replay/step_run.h"

namespace snug::python {
namespace {

namespace py = pybind11;

py::object error_type(const char* name) { return py::module_::import("snug.errors").attr(name); }

py::object to_python(const OutOfBudget& error) {
  const auto& d = error.details();
  return error_type("OutOfBudget")(error.what(), py::arg("requested") = d.requested,
                                   py::arg("allocated") = d.stats.allocated,
                                   py::arg("limit") = d.stats.limit.value_or(0), py::arg("device") = d.device.str(),
                                   py::arg("operation") = d.operation, py::arg("by_tag") = to_dict(d.stats.by_tag),
                                   py::arg("_details") = py::cast(d));
}

py::object to_python(const DoesNotFit& error) {
  const auto& f = error.floor();
  return error_type("DoesNotFit")(
      error.what(), py::arg("budget") = f.budget, py::arg("floor") = f.floor, py::arg("step_bytes") = f.step_bytes,
      py::arg("static_by_tag") = to_dict(f.static_by_tag), py::arg("strategy") = f.strategy,
      py::arg("only_begun") = f.recorded != DoesNotFit::Floor::Recorded::Whole, py::arg("device") = f.device);
}

void set(const py::object& exception) { PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr()); }

void translate(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (python_error& e) {
    e.restore();
  } catch (const OutOfBudget& e) {
    set(to_python(e));
  } catch (const DoesNotFit& e) {
    set(to_python(e));
  } catch (const UsageError& e) {
    set(error_type("UsageError")(e.what()));
  } catch (const replay::UpdateBegins&) {
    set(error_type("UpdateBegins")());
  } catch (const Error& e) {
    set(error_type("Error")(e.what()));
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
  }
}

/// What snug throws into LibTorch, in a Python process: python_error comes out as the exception that it holds.
void throw_python_error(const std::exception_ptr& error) {
  const py::gil_scoped_acquire gil;
  translate(error);
  if (PyErr_Occurred() == nullptr) return;
  python_error passed;
  passed.persist();
  throw passed;
}

/// Of snug's exceptions a program, and the core, recovers from this one: what Python has of it holds its details.
std::exception_ptr refusal_in(PyObject* exception) {
  if (exception == nullptr) return nullptr;
  const py::object details = py::getattr(exception, "_details", py::none());
  if (!py::isinstance<OutOfBudget::Details>(details)) return nullptr;
  return std::make_exception_ptr(OutOfBudget(details.cast<OutOfBudget::Details>()));
}

std::exception_ptr error_of_snug(const std::exception_ptr& error) {
  const py::gil_scoped_acquire gil;
  try {
    std::rethrow_exception(error);
  } catch (const python_error& e) {
    return refusal_in(e.value);
  } catch (const py::error_already_set& e) {
    return refusal_in(e.value().ptr());
  } catch (...) {
    return nullptr;
  }
}

void* give_up_gil() { return PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr; }
void take_gil_back(void* thread) { PyEval_RestoreThread(static_cast<PyThreadState*>(thread)); }

constexpr FrontEnd kPython{.translate = &throw_python_error,
                           .untranslate = &error_of_snug,
                           .give_up = &give_up_gil,
                           .take_back = &take_gil_back};

}  // namespace

void pass_on(py::error_already_set& error) {
  error.restore();
  python_error passed;
  passed.persist();
  throw passed;
}

void bind_errors(py::module_& module) {
  py::class_<OutOfBudget::Details>(module, "_OutOfBudgetDetails");
  py::register_exception_translator(&translate);
  set_front_end(kPython);
}

}  // namespace snug::python
