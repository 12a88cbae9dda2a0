#include "snug/described/new_tensors.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace snug::described {
namespace {

c10::Device& asked_device() {
  static c10::Device device(c10::kCPU);
  return device;
}

/// A factory: where no device is said, that one.
void make_there(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  c10::Device device = asked_device();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
    if (arguments[i].name() != "device") continue;
    if (value.isNone()) value = device;
    device = value.toDevice();
  }
  // Dense, as layouts come later.
  op.redispatchBoxed(c10::DispatchKeySet(c10::computeDispatchKey(std::nullopt, std::nullopt, device)), stack);
}

bool is_dense_factory(const c10::OperatorName& name) {
  constexpr std::array<std::string_view, 4> kOthers{"sparse", "quantized", "_to_copy", "_affine"};
  return name.name.starts_with("aten::") && std::ranges::none_of(kOthers, [&](std::string_view part) {
           return name.name.find(part) != std::string::npos;
         });
}

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

}  // namespace

struct NewTensorsOn::Factories {
  torch::Library library{torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__};
};

NewTensorsOn::NewTensorsOn(c10::Device device) {
  asked_device() = device;
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard unheard(&silent);  // that kernels are overridden
  factories_ = std::make_unique<Factories>();
  for (const c10::OperatorName& name :
       c10::Dispatcher::singleton().getRegistrationsForDispatchKey(c10::DispatchKey::BackendSelect)) {
    if (is_dense_factory(name))
      factories_->library.impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&make_there>());
  }
}

NewTensorsOn::~NewTensorsOn() = default;

}  // namespace snug::described
