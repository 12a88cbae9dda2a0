#include "tests/device/test_device.h"

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
  if (test_device().is_cpu()) return false;
  install_simulated_devices();
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
