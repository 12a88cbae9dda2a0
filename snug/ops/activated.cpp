#include "snug/ops/activated.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "snug/base/errors.h"
#include "snug/memory/parallel_for.h"
#include "snug/ops/cpu_kernels.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

// LibTorch's loops take two vectors at a time and what remains number by number, with other functions and other bits.
// So none may remain to any thread; the widest two vectors are as many numbers.
constexpr std::int64_t kWidest = 128;
constexpr std::int64_t kNumbersAThread = 1 << 14;

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

/// Whether the kernels have the bits of the LibTorch that runs, which depend on how that was compiled, on numbers from
/// -12 to 12.
template <Activation f>
bool agrees(c10::ScalarType type) {
  constexpr std::int64_t kNumbers = kWidest * 32;
  const at::InferenceMode no_graph;
  const at::Tensor x = at::linspace(-12, 12, kNumbers, at::kDouble).to(type);
  const at::Tensor of_y = at::linspace(3, -2, kNumbers, at::kDouble).to(type);
  const at::Tensor y = at::empty_like(x), of_x = at::empty_like(x);
  const kernels::Activated at{.x = x.data_ptr(), .factor = nullptr, .y = y.data_ptr()};
  cpu_kernels().differentiated(type, f, at, {of_y.data_ptr(), of_x.data_ptr(), nullptr}, 0, kNumbers);
  return same_bytes(y, activated(x, f)) && same_bytes(of_x, slope_times(of_y, x, f));
}

/// Whether n numbers are whole vectors for each of LibTorch's threads, which are as many as there is work for, and for
/// at::gelu all.
bool in_whole_vectors(std::int64_t n) {
  const std::int64_t threads = at::get_num_threads(), busy = at::divup(n, at::internal::GRAIN_SIZE);
  return n > 0 && n % (kWidest * threads) == 0 && n % (kWidest * std::min(threads, busy)) == 0;
}

bool has_kernel(Activation f, const at::Tensor& x) {
  return x.is_cpu() && has_activation_kernel(f, x.scalar_type()) && x.is_contiguous() && in_whole_vectors(x.numel());
}

bool alike(const at::Tensor& x, const at::Tensor& other) {
  return other.is_contiguous() && other.scalar_type() == x.scalar_type() && other.sizes() == x.sizes();
}

ActivationGradients one_after_the_other(const at::Tensor& x, const at::Tensor& factor, Activation f,
                                        const at::Tensor& of_y) {
  at::Tensor y = activated(x, f);
  if (!factor.defined()) return {y, slope_times(of_y, x, f), {}};
  return {y * factor, slope_times(of_y * factor, x, f), of_y * y};
}

using GatedForward = at::Tensor(const at::Tensor&, const at::Tensor&, std::int64_t);
using GatedBackward = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                                         std::int64_t);

at::Tensor gated_kernel(const at::Tensor& x, const at::Tensor& factor, std::int64_t f) {
  const auto activation = static_cast<Activation>(f);
  if (!has_kernel(activation, x) || !alike(x, factor)) return activated(x, activation) * factor;
  at::Tensor y = at::empty_like(x);
  const kernels::Activated at{.x = x.const_data_ptr(), .factor = factor.const_data_ptr(), .y = y.mutable_data_ptr()};
  memory::parallel_for(0, x.numel() / kWidest, kNumbersAThread / kWidest, [&](std::int64_t first, std::int64_t last) {
    cpu_kernels().activated(x.scalar_type(), activation, at, first * kWidest, last * kWidest);
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> gated_backward_kernel(const at::Tensor& of_y, const at::Tensor& x,
                                                         const at::Tensor& factor, std::int64_t f) {
  ActivationGradients all = differentiate(x, factor, static_cast<Activation>(f), of_y);
  return {std::move(all.of_x), std::move(all.of_factor)};
}

class Gated : public torch::autograd::Function<Gated> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& factor,
                            std::int64_t f) {
    static const auto op = operator_of<GatedForward>("snug::gated");
    context->save_for_backward({x, factor});
    context->saved_data["f"] = f;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return op.call(x, factor, f);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    static const auto op = operator_of<GatedBackward>("snug::gated_backward");
    const auto saved = context->get_saved_variables();
    const std::int64_t f = context->saved_data["f"].toInt();
    if (at::GradMode::is_enabled()) {
      const auto all = one_after_the_other(saved[0], saved[1], static_cast<Activation>(f), gradients[0]);
      return {all.of_x, all.of_factor, {}};
    }
    auto [of_x, of_factor] = op.call(gradients[0], saved[0], saved[1], f);
    return {of_x, of_factor, {}};
  }
};

at::Tensor gated_with_autograd(const at::Tensor& x, const at::Tensor& factor, std::int64_t f) {
  return Gated::apply(x, factor, f);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("gated(Tensor x, Tensor factor, int f) -> Tensor");
  library.def("gated_backward(Tensor of_y, Tensor x, Tensor factor, int f) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("gated", gated_kernel);
  library.impl("gated_backward", gated_backward_kernel);
}
TORCH_LIBRARY_IMPL(snug, Autograd, library) { library.impl("gated", gated_with_autograd); }

at::Tensor activated(const at::Tensor& x, Activation f) {
  switch (f) {
    case Activation::Gelu:
      return at::gelu(x, "none");
    case Activation::GeluTanh:
      return at::gelu(x, "tanh");
    case Activation::Silu:
      return at::silu(x);
  }
  return {};
}

bool has_activation_kernel(Activation f, at::ScalarType type) {
  switch (f) {
    case Activation::Gelu:
      return false;  // It is oneDNN's.
    case Activation::GeluTanh:
      return once_for<agrees<Activation::GeluTanh>>(type);
    case Activation::Silu:
      return once_for<agrees<Activation::Silu>>(type);
  }
  return false;
}

at::Tensor slope_times(const at::Tensor& of_y, const at::Tensor& x, Activation f) {
  switch (f) {
    case Activation::Gelu:
      return at::gelu_backward(of_y, x, "none");
    case Activation::GeluTanh:
      return at::gelu_backward(of_y, x, "tanh");
    case Activation::Silu:
      break;
  }
  if (!at::GradMode::is_enabled()) return at::silu_backward(of_y, x);
  const at::Tensor sigmoid = x.sigmoid();
  return of_y * sigmoid * (1 + x * (1 - sigmoid));
}

at::Tensor gated(const at::Tensor& x, const at::Tensor& factor, Activation f) {
  if (x.sizes() != factor.sizes() || x.scalar_type() != factor.scalar_type()) {
    throw Error(fmt::format("gated: {} of shape {} and a factor, {} of shape {}; they are of one type and shape",
                            c10::toString(x.scalar_type()), fmt::join(x.sizes(), "x"),
                            c10::toString(factor.scalar_type()), fmt::join(factor.sizes(), "x")));
  }
  static const auto op = operator_of<GatedForward>("snug::gated");
  return op.call(x, factor, static_cast<std::int64_t>(f));
}

ActivationGradients differentiate(const at::Tensor& x, const at::Tensor& factor, Activation f, const at::Tensor& of_y,
                                  const at::Tensor& room) {
  const bool together = has_kernel(f, x) && alike(x, of_y) && (!factor.defined() || alike(x, factor));
  if (!together) return one_after_the_other(x, factor, f, of_y);
  ActivationGradients all{.y = at::empty_like(x), .of_x = room.defined() ? room : at::empty_like(x), .of_factor = {}};
  if (factor.defined()) all.of_factor = at::empty_like(x);
  const auto data = [](const at::Tensor& t) { return t.defined() ? t.data_ptr() : nullptr; };
  const kernels::Activated at{.x = x.const_data_ptr(), .factor = data(factor), .y = data(all.y)};
  const kernels::ActivatedGradients gradients{
      .of_y = of_y.const_data_ptr(), .of_x = data(all.of_x), .of_factor = data(all.of_factor)};
  memory::parallel_for(0, x.numel() / kWidest, kNumbersAThread / kWidest, [&](std::int64_t first, std::int64_t last) {
    cpu_kernels().differentiated(x.scalar_type(), f, at, gradients, first * kWidest, last * kWidest);
  });
  return all;
}

}  // namespace snug::ops
