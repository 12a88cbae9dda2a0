// snug._simulated: the simulated accelerators (tests/device) in a Python process, beside snug._core, whose memory they
// register with.
#include <ATen/core/Generator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <mutex>

#include "tests/device/simulated_device.h"

namespace {

using snug::testing::kSimulated;

at::Generator generator(c10::DeviceIndex index) { return snug::testing::simulated_generator(index); }

}  // namespace

PYBIND11_MODULE(_simulated, m) {
  m.def("install", &snug::testing::install_simulated_devices);
  m.attr("count") = static_cast<int>(snug::testing::kSimulatedDevices);
  m.def("current_device", [] { return static_cast<int>(snug::testing::current_simulated_device().index()); });
  m.def("set_device", [](int index) {
    c10::impl::VirtualGuardImpl(kSimulated).setDevice({kSimulated, static_cast<c10::DeviceIndex>(index)});
  });
  m.def("synchronize", [] { snug::testing::Streams::instance().wait_for_all(); });
  m.def("get_rng_state", [](int index) {
    at::Generator of = generator(static_cast<c10::DeviceIndex>(index));
    const std::lock_guard lock(of.mutex());
    return of.get_state();
  });
  m.def("set_rng_state", [](const at::Tensor& state, int index) {
    at::Generator of = generator(static_cast<c10::DeviceIndex>(index));
    const std::lock_guard lock(of.mutex());
    of.set_state(state);
  });
  m.def("manual_seed", [](std::uint64_t seed, int index) {
    at::Generator of = generator(static_cast<c10::DeviceIndex>(index));
    const std::lock_guard lock(of.mutex());
    of.set_current_seed(seed);
  });
}
