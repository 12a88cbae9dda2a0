// Losses that save memory.
#include "python/bindings/losses.h"

#include <optional>

#include "snug/ops/linear_cross_entropy.h"

namespace snug::python {
namespace {

namespace py = pybind11;

at::Tensor loss(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets, Bytes tile,
                const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& scale, std::int64_t ignored,
                double label_smoothing) {
  return ops::linear_cross_entropy(x, weight, targets,
                                   {.tile = {.logits = tile},
                                    .terms = {.label_smoothing = label_smoothing},
                                    .ignored = ignored,
                                    .bias = bias.value_or(at::Tensor()),
                                    .scale = scale.value_or(at::Tensor())});
}

}  // namespace

void bind_losses(py::module_& m) {
  m.def("linear_cross_entropy", loss, py::arg("x"), py::arg("weight"), py::arg("targets"), py::arg("tile"),
        py::arg("bias"), py::arg("scale"), py::arg("ignored"), py::arg("label_smoothing"),
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace snug::python
