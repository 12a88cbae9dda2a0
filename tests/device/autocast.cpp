// Mixed precision on the simulated devices: LibTorch has no lists of operators for the key that they use. Those of the
// CPU's lists, as far as models here call them; what else it casts is left as it is.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <array>

#include "tests/device/simulated_device.h"

namespace snug::testing {
namespace {

/// Calls the operator with its tensors cast.
template <class Cast>
void with_tensors(const c10::OperatorHandle& op, torch::jit::Stack* stack, const Cast& cast) {
  const c10::impl::ExcludeDispatchKeyGuard once(c10::DispatchKey::AutocastHPU);
  const std::size_t count = op.schema().arguments().size();
  for (std::size_t i = stack->size() - count; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isTensor() && value.toTensor().defined()) value = cast(value.toTensor());
  }
  op.callBoxed(stack);
}

void in_few_bits(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  with_tensors(op, stack, [](const at::Tensor& t) {
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(kSimulated), t, kSimulated);
  });
}

void in_all_bits(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  with_tensors(op, stack, [](const at::Tensor& t) { return at::autocast::cached_cast(at::kFloat, t, kSimulated); });
}

constexpr std::array kInFewBits{"linear",
                                "matmul",
                                "mm",
                                "bmm",
                                "addmm",
                                "addbmm",
                                "baddbmm",
                                "conv1d",
                                "conv2d",
                                "conv3d",
                                "scaled_dot_product_attention",
                                "_convolution",
                                "conv_transpose1d",
                                "conv_transpose2d.input"};

constexpr std::array kInAllBits{"mse_loss",
                                "l1_loss",
                                "smooth_l1_loss",
                                "huber_loss",
                                "nll_loss",
                                "nll_loss2d",
                                "cross_entropy_loss",
                                "kl_div",
                                "binary_cross_entropy",
                                "binary_cross_entropy_with_logits",
                                "prod",
                                "cdist"};

TORCH_LIBRARY_IMPL(aten, AutocastHPU, library) {
  for (const char* name : kInFewBits) library.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_few_bits>());
  for (const char* name : kInAllBits) library.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_all_bits>());
}

TORCH_LIBRARY_IMPL(_, AutocastHPU, library) { library.fallback(torch::CppFunction::makeFallthrough()); }

}  // namespace
}  // namespace snug::testing
