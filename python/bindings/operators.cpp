// Operators that keep less for the backward pass.
#include "python/bindings/operators.h"

#include <fmt/format.h>

#include <optional>
#include <string>

#include "snug/base/errors.h"
#include "snug/ops/activated.h"
#include "snug/ops/activated_linear.h"
#include "snug/ops/rms_norm.h"

namespace snug::python {
namespace {

namespace py = pybind11;

ops::Activation activation_of(const std::string& name) {
  if (name == "gelu") return ops::Activation::Gelu;
  if (name == "gelu_tanh") return ops::Activation::GeluTanh;
  if (name == "silu") return ops::Activation::Silu;
  throw UsageError(fmt::format("activation \"{}\" is not known; it is gelu, gelu_tanh or silu", name));
}

at::Tensor linear(const at::Tensor& x, const std::optional<at::Tensor>& factor, const std::string& activation,
                  const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return ops::activated_linear({.x = x, .f = activation_of(activation), .factor = factor.value_or(at::Tensor())},
                               weight, bias.value_or(at::Tensor()));
}

at::Tensor gated(const at::Tensor& x, const at::Tensor& factor, const std::string& activation) {
  return ops::gated(x, factor, activation_of(activation));
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return ops::rms_norm(x, weight, epsilon);
}

}  // namespace

void bind_operators(py::module_& m) {
  m.def("activated_linear", linear, py::arg("x"), py::arg("factor"), py::arg("activation"), py::arg("weight"),
        py::arg("bias"), py::call_guard<py::gil_scoped_release>());
  m.def("gated", gated, py::arg("x"), py::arg("factor"), py::arg("activation"),
        py::call_guard<py::gil_scoped_release>());
  m.def("rms_norm", rms_norm, py::arg("x"), py::arg("weight"), py::arg("epsilon"),
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace snug::python
