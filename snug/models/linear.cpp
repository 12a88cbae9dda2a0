#include "snug/models/linear.h"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <cmath>
#include <utility>

#include "snug/base/errors.h"
#include "snug/models/lora.h"
#include "snug/models/parameter.h"
#include "snug/ops/activated.h"
#include "snug/ops/dropout.h"
#include "snug/ops/packed_linear.h"

namespace snug::models {

struct LinearImpl::Adapter {
  Linear down, up;
  LoraOptions options;
};

LinearImpl::LinearImpl(std::int64_t in, std::int64_t out, bool has_bias, double deviation, WeightLayout layout)
    : in_(in), out_(out), layout_(layout) {
  const bool out_first = layout == WeightLayout::OutIn;
  weight = register_parameter("weight", normal_parameter({out_first ? out : in, out_first ? in : out}, deviation));
  if (has_bias) bias = register_parameter("bias", constant_parameter({out}, 0));
}

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  at::Tensor y;
  if (packed_) {
    y = ops::packed_linear(x, *packed_);
    if (bias.defined()) y = y + bias;
  } else {
    y = at::linear(x, out_in(), bias);
  }
  if (!adapter_) return y;
  Adapter& a = *adapter_;
  // Autocast casts to what it multiplies in: x, which is of that type, need not be raised for it.
  const bool is_cast = at::autocast::is_autocast_enabled(x.device().type());
  const at::Tensor in = is_cast ? x : x.to(a.down->weight.scalar_type());
  const at::Tensor narrow = a.down(ops::dropout(in, is_training() ? a.options.dropout : 0));
  return (y + a.up(narrow * a.options.factor())).to(y.scalar_type());
}

at::Tensor LinearImpl::after(const ops::ActivatedInput& input) {
  if (!packed_ && !adapter_) return ops::activated_linear(input, out_in(), bias);
  const auto& [x, f, factor] = input;
  return forward(factor.defined() ? ops::gated(x, factor, f) : ops::activated(x, f));
}

void LinearImpl::pack(ops::PackedMatrix packed) {
  if (packed.rows() != out_ || packed.columns() != in_) {
    throw Error(
        fmt::format("linear: a packed weight of {}x{} in place of {}x{}", packed.rows(), packed.columns(), out_, in_));
  }
  packed_ = std::move(packed);
  weight = at::Tensor();
  if (parameters_.contains("weight")) parameters_.erase("weight");
}

void LinearImpl::adapt(const LoraOptions& options) {
  if (adapter_) throw Error("linear: there is an adapter already");
  Linear down(in_, options.rank, false), up(options.rank, out_, false);
  {
    // As the reference begins: the product is zero, and its first factor what torch::nn::Linear begins with.
    const at::NoGradGuard no_grad;
    const double bound = 1 / std::sqrt(static_cast<double>(in_));
    down->weight.uniform_(-bound, bound);
    up->weight.zero_();
  }
  register_module("lora_A", down);
  register_module("lora_B", up);
  adapter_ = std::make_shared<Adapter>(Adapter{down, up, options});
}

void LinearImpl::merge() {
  if (!adapter_) return;
  if (packed_) {
    throw UsageError(
        "merging an adapter: the weight is packed in blocks of few bits, and its sum with the adapter's "
        "product is not; load the weights in fp32 or bf16");
  }
  const at::NoGradGuard no_grad;
  const at::Tensor product = at::mm(adapter_->up->weight, adapter_->down->weight) * adapter_->options.factor();
  out_in().add_(product.to(weight.scalar_type()));
  adapter_.reset();
  unregister_module("lora_A");
  unregister_module("lora_B");
}

const LoraOptions* LinearImpl::adapter_options() const { return adapter_ ? &adapter_->options : nullptr; }

ops::Matrix LinearImpl::matrix() const {
  if (packed_) return *packed_;
  return out_in();
}

}  // namespace snug::models
