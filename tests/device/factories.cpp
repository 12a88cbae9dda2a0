// For test programs whose tests make their tensors without saying where: on the tests' device.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "tests/device/test_device.h"

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
[[maybe_unused]] const bool kFactoriesThere = [] {
  if (test_device().is_cpu()) return false;
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
}  // namespace snug::testing
