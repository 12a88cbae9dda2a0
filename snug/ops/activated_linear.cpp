#include "snug/ops/activated_linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>

#include <optional>
#include <tuple>
#include <utility>

#include "snug/base/errors.h"
#include "snug/ops/activated.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

using LinearGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// (..., last) as a matrix.
at::Tensor as_matrix(const at::Tensor& x) {
  return x.reshape({c10::multiply_integers(x.sizes().slice(0, x.dim() - 1)), x.size(-1)});
}

/// What is multiplied by the weight.
at::Tensor factor_of_product(const at::Tensor& x, Activation f, const at::Tensor& factor) {
  return factor.defined() ? gated(x, factor, f) : activated(x, f);
}

at::Tensor forward_kernel_of_linear(const at::Tensor& x, std::int64_t f, const MaybeTensor& factor,
                                    const at::Tensor& weight, const MaybeTensor& bias) {
  const at::Tensor in = factor_of_product(x, static_cast<Activation>(f), given(factor));
  return at::linear(in.to(weight.scalar_type()), weight, bias);
}

/// As at::linear's backward pass has it, which looks at how the weight lies.
at::Tensor gradient_of_weight(const at::Tensor& of_y, const at::Tensor& in, const at::Tensor& weight) {
  if (weight.is_contiguous()) return at::mm(of_y.t(), in);
  return at::mm(in.t(), of_y).t();
}

/// The gradients that are wanted, of x, the factor, the weight and the bias; empty ones for the others.
LinearGradients backward_kernel_of_linear(const at::Tensor& of_y, const at::Tensor& x, std::int64_t f,
                                          const MaybeTensor& factor, const at::Tensor& weight, bool of_input,
                                          bool of_weight, bool of_bias) {
  const at::Tensor none = at::empty({0}, x.options()), rows = as_matrix(of_y);
  const auto activation = static_cast<Activation>(f);
  at::Tensor in;
  LinearGradients all{none, none, none, none};
  auto& [to_x, to_factor, to_weight, to_bias] = all;
  if (of_input) {
    const at::Tensor of_in = at::mm(rows, weight).to(x.scalar_type()).view(x.sizes());
    ActivationGradients gradients = differentiate(x, given(factor), activation, of_in, of_in);
    in = std::move(gradients.y);
    to_x = std::move(gradients.of_x);
    if (factor) to_factor = std::move(gradients.of_factor);
  }
  if (of_weight) {
    if (!in.defined()) in = factor_of_product(x, activation, given(factor));
    to_weight = gradient_of_weight(rows, as_matrix(in.to(weight.scalar_type())), weight);
  }
  if (of_bias) to_bias = rows.sum(0);
  return all;
}

const auto& linear_op() {
  static const auto op = operator_of<decltype(forward_kernel_of_linear)>("snug::activated_linear");
  return op;
}

const auto& linear_backward_op() {
  static const auto op = operator_of<decltype(backward_kernel_of_linear)>("snug::activated_linear_backward");
  return op;
}

class ActivatedLinear : public torch::autograd::Function<ActivatedLinear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t f,
                            const MaybeTensor& factor, const at::Tensor& weight, const MaybeTensor& bias) {
    context->save_for_backward({x, given(factor), weight});
    context->saved_data["f"] = f;
    context->saved_data["has_bias"] = bias.has_value();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return linear_op().call(x, f, factor, weight, bias);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const std::int64_t f = context->saved_data["f"].toInt();
    const at::Tensor &x = saved[0], &factor = saved[1], &weight = saved[2];
    // Tensors in the order of forward's; an absent one is not counted.
    const bool of_x = context->needs_input_grad(0), of_factor = factor.defined() && context->needs_input_grad(1);
    const std::size_t next = factor.defined() ? 2 : 1;
    const bool has_bias = context->saved_data["has_bias"].toBool();
    const bool of_weight = context->needs_input_grad(next), of_bias = has_bias && context->needs_input_grad(next + 1);
    if (at::GradMode::is_enabled()) return again(gradients[0], saved, static_cast<Activation>(f), of_bias);
    const auto [to_x, to_factor, to_weight, to_bias] =
        linear_backward_op().call(gradients[0], x, f, maybe(factor), weight, of_x || of_factor, of_weight, of_bias);
    const auto wanted = [](bool is, const at::Tensor& t) { return is ? t : at::Tensor(); };
    return {
        wanted(of_x, to_x), {}, wanted(of_factor, to_factor), wanted(of_weight, to_weight), wanted(of_bias, to_bias)};
  }

 private:
  /// By operators that can be differentiated again.
  static torch::autograd::variable_list again(const at::Tensor& of_y, const torch::autograd::variable_list& saved,
                                              Activation f, bool of_bias) {
    const at::Tensor &x = saved[0], &factor = saved[1], &weight = saved[2], rows = as_matrix(of_y);
    const at::Tensor in = as_matrix(factor_of_product(x, f, factor).to(weight.scalar_type()));
    const at::Tensor of_in = at::mm(rows, weight).to(x.scalar_type()).view(x.sizes());
    const at::Tensor of_product = factor.defined() ? of_in * factor : of_in;
    return {slope_times(of_product, x, f),
            {},
            factor.defined() ? of_in * activated(x, f) : at::Tensor(),
            at::mm(rows.t(), in),
            of_bias ? rows.sum(0) : at::Tensor()};
  }
};

at::Tensor linear_with_autograd(const at::Tensor& x, std::int64_t f, const MaybeTensor& factor,
                                const at::Tensor& weight, const MaybeTensor& bias) {
  return ActivatedLinear::apply(x, f, factor, weight, bias);
}

/// at::linear is cast, and what comes before it is not.
at::Tensor linear_with_autocast(const at::Tensor& x, std::int64_t f, const MaybeTensor& factor,
                                const at::Tensor& weight, const MaybeTensor& bias) {
  const c10::DeviceType device = x.device().type();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto cast = [&](const at::Tensor& t) {
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
  };
  return linear_op().call(x, f, factor, cast(weight), bias ? MaybeTensor(cast(*bias)) : std::nullopt);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("activated_linear(Tensor x, int f, Tensor? factor, Tensor weight, Tensor? bias) -> Tensor");
  library.def(
      "activated_linear_backward(Tensor of_y, Tensor x, int f, Tensor? factor, Tensor weight, bool of_input, bool "
      "of_weight, bool of_bias) -> (Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("activated_linear", forward_kernel_of_linear);
  library.impl("activated_linear_backward", backward_kernel_of_linear);
}
TORCH_LIBRARY_IMPL(snug, Autograd, library) { library.impl("activated_linear", linear_with_autograd); }
TORCH_LIBRARY_FRAGMENT(snug, library) { in_mixed_precision(library, "activated_linear", linear_with_autocast); }

at::Tensor activated_linear(const ActivatedInput& input, const at::Tensor& weight, const at::Tensor& bias) {
  const auto& [x, f, factor] = input;
  if (x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1)) {
    throw Error(fmt::format("activated linear: an input of shape {} and a weight of shape {} do not multiply",
                            fmt::join(x.sizes(), "x"), fmt::join(weight.sizes(), "x")));
  }
  if (factor.defined() && (factor.sizes() != x.sizes() || factor.scalar_type() != x.scalar_type())) {
    throw Error(
        fmt::format("activated linear: {} of shape {} and a factor, {} of shape {}; they are of one type and shape",
                    c10::toString(x.scalar_type()), fmt::join(x.sizes(), "x"), c10::toString(factor.scalar_type()),
                    fmt::join(factor.sizes(), "x")));
  }
  if (x.scalar_type() != weight.scalar_type() && !at::autocast::is_autocast_enabled(x.device().type())) {
    throw Error(fmt::format("activated linear: an input of {} and a weight of {}; they are of one type",
                            c10::toString(x.scalar_type()), c10::toString(weight.scalar_type())));
  }
  return linear_op().call(x, static_cast<std::int64_t>(f), maybe(factor), weight, maybe(bias));
}

}  // namespace snug::ops
