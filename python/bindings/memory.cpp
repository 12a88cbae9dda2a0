// The device's memory: what is counted, the limit, and a monitor of its course.
#include "python/bindings/memory.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/held_limit.h"
#include "snug/memory/memory_sample.h"
#include "snug/memory/monitor.h"

namespace snug::python {

namespace py = pybind11;

memory::DeviceMemory& device_memory(const std::string& device) {
  return memory::device_memory(memory::device_named(device));
}

py::dict to_dict(const memory::ByTag& bytes) {
  py::dict dict;
  for (std::size_t i = 0; i < memory::kTags; ++i) dict[std::string(memory::kTagNames[i]).c_str()] = bytes[i];
  return dict;
}

namespace {

py::dict stats(const std::string& device) {
  const memory::Stats s = device_memory(device).stats();
  py::dict dict;
  dict["allocated"] = s.allocated;
  dict["allocated_peak"] = s.allocated_peak;
  dict["mapped"] = s.mapped;
  dict["mapped_peak"] = s.mapped_peak;
  dict["limit"] = s.limit;
  dict["by_tag"] = to_dict(s.by_tag);
  dict["at_peak_by_tag"] = to_dict(s.at_peak_by_tag);
  dict["allocations"] = s.allocations;
  return dict;
}

/// A limit, or none, for a `with`.
class PyHeldLimit {
 public:
  PyHeldLimit(std::optional<Bytes> bytes, const std::string& device) : memory_(device_memory(device)), bytes_(bytes) {}
  void enter() { held_.emplace(memory_, bytes_); }
  void exit() { held_.reset(); }

 private:
  memory::DeviceMemory& memory_;
  std::optional<Bytes> bytes_;
  std::optional<memory::HeldLimit> held_;
};

/// Of tensors on any device, also on those that nothing is counted of.
void tag(const std::vector<at::Tensor>& tensors, const std::string& name) {
  const auto tag = static_cast<memory::Tag>(std::ranges::find(memory::kTagNames, name) - memory::kTagNames.begin());
  const std::vector<c10::Device> devices = memory::devices();
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.has_storage() || std::ranges::find(devices, tensor.device()) == devices.end()) continue;
    memory::DeviceMemory& memory = memory::device_memory(tensor.device());
    memory.adopt(tensor.storage());  // copy.deepcopy() and torch.load() pass by the allocator
    memory.retag(tensor.storage(), tag);
  }
}

void set_memory_limit(std::optional<Bytes> bytes, const std::string& device) {
  if (bytes && *bytes <= 0) {
    throw UsageError("memory limit: " + std::to_string(*bytes) + " bytes; it must be positive, or None for no limit");
  }
  device_memory(device).set_limit(bytes);
}

/// What Python is told of alarms: (kind, message).
std::vector<std::pair<std::string, std::string>> step(memory::Monitor& monitor, std::int64_t step,
                                                      std::optional<double> loss_scale) {
  std::vector<std::pair<std::string, std::string>> alarms;
  for (const memory::Alarm& alarm : monitor.step(step, loss_scale))
    alarms.emplace_back(name_of(alarm.kind), alarm.message);
  return alarms;
}

std::unique_ptr<memory::Monitor> make_monitor(const std::string& device, double interval,
                                              const std::optional<std::string>& file, bool appends,
                                              std::int64_t growth_steps, double headroom) {
  memory::MonitorOptions options{
      .device = memory::device_named(device), .interval = interval, .file = file.value_or("")};
  if (appends) options.existing = JsonLines::Existing::Append;
  options.alarms.growth_steps = growth_steps;
  options.alarms.headroom = headroom;
  return std::make_unique<memory::Monitor>(options);
}

}  // namespace

void bind_memory(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  m.def("parse_bytes", [](const std::string& text) { return parse_bytes(text); });
  m.def("format_bytes", &format_bytes);
  m.def(
      "with_index", [](const std::string& d) { return memory::with_index(memory::device_named(d)).str(); },
      py::arg("device"));
  m.def("memory_stats", &stats, py::arg("device"));
  m.def(
      "reset_peak", [](const std::string& d) { device_memory(d).reset_peak(); }, py::arg("device"));
  m.def("set_memory_limit", &set_memory_limit, py::arg("bytes"), py::arg("device") = "cpu",
        "No more than so many bytes of the device's memory are handed out from now on, to anybody in the process; None "
        "lifts the limit.");
  m.def(
      "release_cached", [](const std::string& d) { device_memory(d).release_cached(); }, py::arg("device") = "cpu",
      "Returns cached free memory to the system.");
  m.def("tag", &tag, py::arg("tensors"), py::arg("name"));
  py::class_<PyHeldLimit>(m, "HeldLimit")
      .def(py::init<std::optional<Bytes>, const std::string&>(), py::arg("bytes"), py::arg("device"))
      .def("__enter__", &PyHeldLimit::enter)
      .def("__exit__", [](PyHeldLimit& held, const py::args&) { held.exit(); });
  py::class_<memory::Monitor>(m, "Monitor")
      .def(py::init(&make_monitor), py::arg("device"), py::arg("interval"), py::arg("file"), py::arg("appends"),
           py::arg("growth_steps"), py::arg("headroom"))
      .def("step", &step, py::arg("step"), py::arg("loss_scale"), NoGil())
      .def("close", &memory::Monitor::close, NoGil())
      .def("timeline", &memory::Monitor::timeline, NoGil())
      .def_property_readonly("peak", &memory::Monitor::peak)
      .def_property_readonly("step_peak", &memory::Monitor::step_peak);
  m.def(
      "memory_sample",
      [](const std::string& d) {
        const memory::MemorySample now = memory::sample(device_memory(d));
        py::dict dict;
        dict["resident"] = now.resident;
        dict["resident_tensors"] = now.shares.tensors;
        dict["resident_cached"] = now.shares.cached;
        dict["resident_untouched"] = now.shares.untouched;
        dict["resident_others"] = now.shares.others;
        dict["device_total"] = now.device.total;
        dict["device_free"] = now.device.available;
        return dict;
      },
      py::arg("device"));
}

}  // namespace snug::python
