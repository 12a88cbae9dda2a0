#include "tests/device/test_device.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>

#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

/// A factory: where no device is said, the tests'.
void on_test_device(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  c10::Device device = test_device();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    if (arguments[i].name() != "device") continue;
    if (value.isNone()) value = device;
    device = value.toDevice();
  }
  const c10::DispatchKey key =
      c10::computeDispatchKey(c10::nullopt, c10::nullopt, device);  // dense, as layouts come later
  op.redispatchBoxed(c10::DispatchKeySet(key), stack);
}

bool is_dense_factory(const c10::OperatorName& name) {
  constexpr std::array<std::string_view, 4> others{"sparse", "quantized", "_to_copy", "_affine"};
  return name.name.starts_with("aten::") &&
         std::ranges::none_of(others, [&](std::string_view part) { return name.name.find(part) != std::string::npos; });
}

/// Before the first test, and before main().
[[maybe_unused]] const bool kInstalled = [] {
  if (test_device().is_cpu()) return false;
  install_simulated_devices();
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  c10::WarningUtils::set_warnAlways(false);
  for (const c10::OperatorName& name :
       c10::Dispatcher::singleton().getRegistrationsForDispatchKey(c10::DispatchKey::BackendSelect)) {
    if (!is_dense_factory(name)) continue;
    const std::string whole = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(whole.c_str(), torch::CppFunction::makeFromBoxedFunction<&on_test_device>());
  }
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
