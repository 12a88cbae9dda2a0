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
#include "snug/ops/block_format.h"
#include "snug/ops/dropout.h"
#include "snug/ops/packed_linear.h"

namespace snug::models {
namespace {

constexpr std::int64_t kPositionsOfX = 1;  // the dimension of (batch, sequence, width)

}  // namespace

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

at::Tensor LinearImpl::product(const at::Tensor& x) {
  at::Tensor y;
  if (packed_) {
    y = ops::packed_linear(x, *packed_);
    if (own_bias().defined()) y = y + bias;
  } else {
    y = at::linear(x, out_in(), own_bias());
  }
  if (!adapter_) return y;
  Adapter& a = *adapter_;
  // Autocast casts to what it multiplies in: x, which is of that type, need not be raised for it.
  const bool is_cast = at::autocast::is_autocast_enabled(x.device().type());
  const at::Tensor in = is_cast ? x : x.to(a.down->weight.scalar_type());
  const double dropout = is_training() ? a.options.dropout : 0;
  const auto random = adds_up() && dropout > 0 ? random_inside() : nullptr;
  const at::Tensor narrow = a.down(ops::dropout(in, dropout));
  return (y + a.up(narrow * a.options.factor())).to(y.scalar_type());
}

at::Tensor LinearImpl::product_after(const ops::ActivatedInput& input) {
  if (!packed_ && !adapter_) return ops::activated_linear(input, out_in(), own_bias());
  const auto& [x, f, factor] = input;
  return product(factor.defined() ? ops::gated(x, factor, f) : ops::activated(x, f));
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
  if (in_parts())
    throw UsageError("adding an adapter: the layer is in parts; add adapters to the whole model, and divide it then");
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

at::Tensor LinearImpl::enter(const at::Tensor& x) const {
  if (!part_ || adds_up()) return x;
  const ops::LayerGroup& group = part_->parts.group;
  return part_->parts.sequences() ? ops::enter_parts_from(x, kPositionsOfX, group) : ops::enter_parts(x, group);
}

at::Tensor LinearImpl::leave(const at::Tensor& product) const {
  if (!adds_up()) return product;
  const ops::LayerGroup& group = part_->parts.group;
  const at::Tensor y =
      part_->parts.sequences() ? ops::leave_parts_to(product, kPositionsOfX, group) : ops::leave_parts(product, group);
  return bias.defined() ? y + bias.to(y.scalar_type()) : y;
}

std::unique_ptr<RandomOfParts> LinearImpl::random_inside() const {
  if (!part_) return nullptr;
  return std::make_unique<RandomOfParts>(part_->parts.group->rank(), device());
}
std::unique_ptr<RandomOfParts> LinearImpl::random_outside() const {
  return part_ && part_->parts.sequences() ? random_inside() : nullptr;
}

void LinearImpl::check_part(const std::string& name, const LayerLayout& layout, int processes) const {
  if (part_) throw UsageError(fmt::format("tensor parallel: {} is in parts already", name));
  const auto* const columns = std::get_if<Columns>(&layout);
  const std::int64_t size = columns != nullptr ? out_ : in_, pieces = columns != nullptr ? columns->pieces : 1;
  const auto block = packed_ && columns == nullptr
                         ? static_cast<std::int64_t>(ops::block_layout(packed_->format).elements)
                         : std::int64_t{1};
  if (size % (pieces * processes) == 0 && size / processes % block != 0) {
    throw UsageError(
        fmt::format("tensor parallel: {} has {} inputs, packed in blocks of {}, which {} processes cannot have in even "
                    "parts; choose another number of them, or load the weights in fp32 or bf16",
                    name, size, block, processes));
  }
  if (size % (pieces * processes) == 0) return;
  throw UsageError(fmt::format(
      "tensor parallel: {} has {} {}, which {} processes cannot have in even parts; choose another number of them",
      name, size, columns != nullptr ? "outputs" : "inputs", pieces * processes));
}

void LinearImpl::keep_part(const LayerLayout& layout, const LayerParts& parts) {
  const int rank = parts.group->rank(), size = parts.group->size();
  const bool out_first = layout_ == WeightLayout::OutIn;
  const auto* const columns = std::get_if<Columns>(&layout);
  part_ = Part{layout, parts};
  const auto keep = [&](const at::Tensor& parameter, std::int64_t dimension) {
    const std::int64_t pieces = columns != nullptr ? columns->pieces : 1;
    part_->own.push_back(keep_piecewise_part(parameter, dimension, pieces, rank, size));
  };
  if (packed_) {
    const std::int64_t dimension = columns != nullptr ? 0 : 1, pieces = columns != nullptr ? columns->pieces : 1;
    const std::int64_t each = (columns != nullptr ? out_ : in_) / pieces, own = each / size;
    std::vector<at::Tensor> parts_of_pieces;
    for (std::int64_t piece = 0; piece < pieces; ++piece)
      parts_of_pieces.push_back(ops::part_of(*packed_, dimension, piece * each + rank * own, own).blocks);
    packed_->blocks = pieces == 1 ? parts_of_pieces.front() : at::cat(parts_of_pieces, 0);
  }
  if (columns != nullptr) {
    if (!packed_) keep(weight, out_first ? 0 : 1);
    if (bias.defined()) keep(bias, 0);
    if (adapter_) keep(adapter_->up->weight, 0), adapter_->up->out_ /= size;
    out_ /= size;
  } else {
    if (!packed_) keep(weight, out_first ? 1 : 0);
    if (adapter_) keep(adapter_->down->weight, 1), adapter_->down->in_ /= size;
    in_ /= size;
  }
}

std::optional<ParameterPart> LinearImpl::keep_rows(std::int64_t first, std::int64_t count) {
  out_ = count;
  rows_cut_ = true;
  if (packed_) {
    packed_ = ops::part_of(*packed_, 0, first, count);
    return std::nullopt;
  }
  return models::keep_part(weight, layout_ == WeightLayout::OutIn ? 0 : 1, first, count);
}

std::vector<at::Tensor> LinearImpl::summands() const {
  std::vector<at::Tensor> all;
  if (!part_) return all;
  if (adapter_) all.push_back(adds_up() ? adapter_->up->weight : adapter_->down->weight);
  if (adds_up() && part_->parts.sequences() && bias.defined()) all.push_back(bias);
  return all;
}

ops::Matrix LinearImpl::matrix() const {
  if (packed_) return *packed_;
  return out_in();
}

}  // namespace snug::models
