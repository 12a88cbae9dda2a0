#include "snug/ops/dropout.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>

#include <tuple>

#include "snug/memory/parallel_for.h"
#include "snug/ops/cpu_kernels.h"
#include "snug/ops/found_apart.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kBytesOfAThread = 1 << 12;

std::int64_t bytes_for(std::int64_t bits) { return (bits + 7) / 8; }

/// What LibTorch multiplies what stays by, in x's type.
double kept_factor(const at::Tensor& x, double probability) {
  return at::ones({1}, x.options()).div_(1 - probability).item<double>();
}

at::Tensor times_bits_kernel(const at::Tensor& x, const at::Tensor& bits, double probability) {
  const at::Tensor in = x.contiguous();
  at::Tensor y = at::empty_like(in);
  const kernels::MaskedNumbers all{.x = in.const_data_ptr(),
                                   .y = y.mutable_data_ptr(),
                                   .bits = bits.const_data_ptr<std::uint8_t>(),
                                   .kept = kept_factor(x, probability),
                                   .count = in.numel()};
  memory::parallel_for(0, bits.numel(), kBytesOfAThread, [&](std::int64_t first, std::int64_t last) {
    cpu_kernels().times_bits(in.scalar_type(), all, first, last);
  });
  return y;
}

/// (y, bits)
std::tuple<at::Tensor, at::Tensor> dropout_kernel(const at::Tensor& x, double probability) {
  const std::int64_t bytes = bytes_for(x.numel());
  const at::Tensor bits = at::empty({bytes}, x.options().dtype(at::kByte));
  {
    // Whole bytes: drawn are as many as x has.
    const at::Tensor drawn = at::empty({8 * bytes}, x.options().dtype(at::kByte));
    drawn.narrow(0, x.numel(), 8 * bytes - x.numel()).zero_();
    drawn.narrow(0, 0, x.numel()).bernoulli_(1 - probability);
    memory::parallel_for(0, bytes, kBytesOfAThread, [&](std::int64_t first, std::int64_t last) {
      cpu_kernels().pack_bits(drawn.const_data_ptr<std::uint8_t>(), bits.mutable_data_ptr<std::uint8_t>(), first, last);
    });
  }
  return {times_bits_kernel(x, bits, probability), bits};
}

const auto& times_bits_op() {
  static const auto op = operator_of<decltype(times_bits_kernel)>("snug::times_bits");
  return op;
}

/// x times what stayed when `bits` were drawn.
class TimesBits : public torch::autograd::Function<TimesBits> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& bits, double probability) {
    context->save_for_backward({bits});
    context->saved_data["probability"] = probability;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return times_bits_op().call(x, bits, probability);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const double probability = context->saved_data["probability"].toDouble();
    return {TimesBits::apply(gradients[0], context->get_saved_variables()[0], probability), {}, {}};
  }
};

class Dropout : public torch::autograd::Function<Dropout> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double probability) {
    static const auto op = operator_of<decltype(dropout_kernel)>("snug::dropout");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [y, bits] = op.call(x, probability);
    context->save_for_backward({bits});
    context->saved_data["probability"] = probability;
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const double probability = context->saved_data["probability"].toDouble();
    return {TimesBits::apply(gradients[0], context->get_saved_variables()[0], probability), {}};
  }
};

/// Whether draws of bytes are those of other numbers in this LibTorch, and leave the generator alike.
bool draws_bytes_alike() {
  static const bool alike = found_apart([] {
    const at::InferenceMode no_graph;
    at::Generator one = at::detail::createCPUGenerator(7), other = at::detail::createCPUGenerator(7);
    constexpr std::int64_t kDraws = 4099;
    const at::Tensor bytes = at::empty({kDraws}, at::kByte).bernoulli_(0.7, one);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      other.set_current_seed(7);
      if (!at::empty({kDraws}, type).bernoulli_(0.7, other).to(at::kByte).equal(bytes)) return false;
    }
    return one.get_state().equal(other.get_state());
  });
  return alike;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("dropout(Tensor x, float probability) -> (Tensor, Tensor)", {at::Tag::nondeterministic_seeded});
  library.def("times_bits(Tensor x, Tensor bits, float probability) -> Tensor");
}
TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("dropout", dropout_kernel);
  library.impl("times_bits", times_bits_kernel);
}

at::Tensor dropout(const at::Tensor& x, double probability) {
  // With a larger factor what stays overflows fp16, in which it is multiplied.
  constexpr double kMostKept = 6e4;
  const bool draws = probability > 0 && (1 - probability) * kMostKept > 1 && x.numel() > 0;
  const bool takes = x.is_cpu() && x.layout() == at::kStrided && x.is_contiguous() && kernels_take(x.scalar_type());
  if (!draws || !takes || !draws_bytes_alike()) return at::dropout(x, probability, /*train=*/true);
  return Dropout::apply(x, probability);
}

}  // namespace snug::ops
