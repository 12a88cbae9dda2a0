// The device's memory: what is counted, the limit, and a sampler of its course.
#include "python/bindings/memory.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/clock.h"
#include "snug/base/errors.h"
#include "snug/memory/device_memory.h"
#include "snug/memory/held_limit.h"

namespace snug::python {
namespace {

namespace py = pybind11;

c10::Device device_named(const std::string& name) {
  try {
    return c10::Device(name);
  } catch (const c10::Error&) {
    throw UsageError("device: \"" + name + "\" is none; give \"cpu\" or \"cuda\"");
  }
}

memory::DeviceMemory& device_memory(const std::string& device) { return memory::device_memory(device_named(device)); }

py::dict by_tag(const memory::ByTag& bytes) {
  py::dict dict;
  for (std::size_t i = 0; i < memory::kTags; ++i) dict[std::string(memory::kTagNames[i]).c_str()] = bytes[i];
  return dict;
}

py::dict stats(const std::string& device) {
  const memory::Stats s = device_memory(device).stats();
  py::dict dict;
  dict["allocated"] = s.allocated;
  dict["allocated_peak"] = s.allocated_peak;
  dict["mapped"] = s.mapped;
  dict["mapped_peak"] = s.mapped_peak;
  dict["limit"] = s.limit;
  dict["by_tag"] = by_tag(s.by_tag);
  dict["at_peak_by_tag"] = by_tag(s.at_peak_by_tag);
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

void set_memory_limit(std::optional<Bytes> bytes, const std::string& device) {
  if (bytes && *bytes <= 0) {
    throw UsageError("memory limit: " + std::to_string(*bytes) + " bytes; it must be positive, or None for no limit");
  }
  device_memory(device).set_limit(bytes);
}

/// Looks at the allocated bytes at a fixed interval, on a thread of its own.
class Sampler {
 public:
  Sampler(const std::string& device, double interval) : memory_(device_memory(device)), interval_(interval) {
    if (!(interval > 0)) throw UsageError("monitor: the interval must be positive, in seconds");
  }
  ~Sampler() { stop(); }
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  void start() {
    stop();
    samples_.clear();
    running_ = true;
    started_ = monotonic_seconds();
    sample();
    thread_ = std::thread([this] {
      std::unique_lock lock(mutex_);
      while (running_) {
        wake_.wait_for(lock, std::chrono::duration<double>(interval_), [this] { return !running_; });
        sample();
      }
    });
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      running_ = false;
    }
    wake_.notify_all();
    if (!thread_.joinable()) return;
    thread_.join();
    sample();
  }
  std::vector<std::pair<double, Bytes>> samples() {
    const std::lock_guard lock(mutex_);
    return samples_;
  }

 private:
  void sample() { samples_.emplace_back(monotonic_seconds() - started_, memory_.stats().allocated); }

  memory::DeviceMemory& memory_;
  double interval_, started_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool running_ = false;
  std::vector<std::pair<double, Bytes>> samples_;
  std::thread thread_;
};

}  // namespace

void bind_memory(py::module_& m) {
  using NoGil = py::call_guard<py::gil_scoped_release>;
  m.def("parse_bytes", [](const std::string& text) { return parse_bytes(text); });
  m.def("format_bytes", &format_bytes);
  m.def(
      "with_index", [](const std::string& d) { return memory::with_index(device_named(d)).str(); }, py::arg("device"));
  m.def("memory_stats", &stats, py::arg("device"));
  m.def(
      "reset_peak", [](const std::string& d) { device_memory(d).reset_peak(); }, py::arg("device"));
  m.def("set_memory_limit", &set_memory_limit, py::arg("bytes"), py::arg("device") = "cpu",
        "No more than so many bytes of the device's memory are handed out from now on, to anybody in the process; None "
        "lifts the limit.");
  m.def(
      "release_cached", [](const std::string& d) { device_memory(d).release_cached(); }, py::arg("device") = "cpu",
      "Returns cached free memory to the system.");
  py::class_<PyHeldLimit>(m, "HeldLimit")
      .def(py::init<std::optional<Bytes>, const std::string&>(), py::arg("bytes"), py::arg("device"))
      .def("__enter__", &PyHeldLimit::enter)
      .def("__exit__", [](PyHeldLimit& held, const py::args&) { held.exit(); });
  py::class_<Sampler>(m, "Sampler")
      .def(py::init<const std::string&, double>(), py::arg("device"), py::arg("interval"))
      .def("start", &Sampler::start, NoGil())
      .def("stop", &Sampler::stop, NoGil())
      .def("samples", &Sampler::samples);
}

}  // namespace snug::python
