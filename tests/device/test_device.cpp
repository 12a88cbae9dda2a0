#include "tests/device/test_device.h"

#include <ATen/Context.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

/// Before the first test, and before main().
[[maybe_unused]] const bool kTestDeviceInstalled = [] {
  if (test_device().type() == kSimulated) install_simulated_devices();
  // The same bits in every run, as far as kernels have them; cuBLAS asks for CUBLAS_WORKSPACE_CONFIG, too.
  if (!test_device().is_cpu()) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  return true;
}();

}  // namespace

c10::Device test_device() {
  static const c10::Device device = [] {
    const char* const asked = std::getenv("SNUG_TEST_DEVICE");
    if (asked == nullptr) return c10::Device(c10::kCPU);
    return std::string_view(asked) == "simulated" ? c10::Device(kSimulated, 0) : c10::Device(asked);
  }();
  return device;
}

std::vector<c10::Device> test_devices() {
  const c10::Device first = test_device();
  std::vector<c10::Device> all{first};
  if (first.is_cpu()) return all;
  all.emplace_back(c10::kCPU);
  for (const c10::Device device : memory::devices()) {
    if (device.type() == first.type() && device != first) all.push_back(device);
  }
  return all;
}

Bytes settled(const memory::DeviceMemory& memory) {
  Bytes before = memory.stats().allocated;
  for (int quiet = 0, tries = 0; quiet < 3 && tries < 1000; ++tries) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    const Bytes now = memory.stats().allocated;
    quiet = now == before ? quiet + 1 : 0;
    before = now;
  }
  return before;
}

memory::DeviceMemory& test_memory() {
  memory::DeviceMemory& memory = memory::device_memory(test_device());
  if (!test_device().is_cpu()) settled(memory);
  return memory;
}

}  // namespace snug::testing
