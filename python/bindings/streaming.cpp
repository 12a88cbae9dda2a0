#include "python/bindings/streaming.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/memory/device_memory.h"
#include "snug/memory/tiers.h"
#include "snug/replay/streamed_tensors.h"

namespace snug::python {

void bind_streaming(pybind11::module_& m) {
  namespace py = pybind11;
  using NoGil = py::call_guard<py::gil_scoped_release>;
  py::class_<StreamedTensors, std::shared_ptr<StreamedTensors>>(m, "StreamedTensors")
      .def(py::init([](const std::optional<std::string>& device, std::optional<Bytes> host, std::optional<Bytes> disk,
                       Bytes min_bytes) {
             StreamOptions options{.host_budget = host, .disk_budget = disk, .min_bytes = min_bytes};
             if (device) options.device = memory::device_named(*device);
             return std::make_shared<StreamedTensors>(options);
           }),
           py::arg("device"), py::arg("host_budget"), py::arg("disk_budget"), py::arg("min_bytes"))
      .def("add", &StreamedTensors::add, NoGil(), py::arg("tensors"))
      .def("reopen", &StreamedTensors::reopen, py::call_guard<py::gil_scoped_release>())
      .def("bring_back", &StreamedTensors::bring_back, NoGil())
      .def_property_readonly("tiers", [](const StreamedTensors& s) { return s.tiers(); })
      .def_property_readonly("bytes", [](const StreamedTensors& s) { return s.totals().bytes; })
      .def_property_readonly("on_disk", [](const StreamedTensors& s) { return s.totals().on_disk; })
      .def_property_readonly("copied_in", [](const StreamedTensors& s) { return s.totals().in; })
      .def_property_readonly("copied_out", [](const StreamedTensors& s) { return s.totals().out; })
      .def_property_readonly(
          "window", [](const StreamedTensors& s) { return s.window() ? s.window()->window().bytes : Bytes{0}; });
}

}  // namespace snug::python
