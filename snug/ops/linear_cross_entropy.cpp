#include "snug/ops/linear_cross_entropy.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "snug/base/errors.h"
#include "snug/ops/registered.h"
#include "snug/ops/softmax_loss.h"

namespace snug::ops {
namespace {

constexpr std::int64_t kPlain = -1;  // in place of a block format

/// The loss, and the gradients of x, W and the bias.
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

/// A plain one in the type in which it is multiplied: cast once, not for each group of rows.
Matrix plain_or_packed(const at::Tensor& weight, std::int64_t format, at::ScalarType dtype) {
  if (format == kPlain) return weight.to(dtype);
  return PackedMatrix{static_cast<BlockFormat>(format), weight};
}

CrossEntropyTerms terms_of(at::ArrayRef<double> terms) {
  return {.label_smoothing = terms[0], .z_loss = terms[1], .soft_cap = terms[2]};
}

/// The logits of a few rows, and then their gradients, in the same memory.
class Group {
 public:
  Group(at::Tensor x, const Matrix& weight, at::Tensor room)
      : x_(std::move(x)), weight_(weight), logits_(std::move(room)) {
    for_each_tile(weight, x_.scalar_type(), kTileBytes, [&](std::int64_t first, const at::Tensor& rows) {
      at::Tensor part = logits_.narrow(1, first, rows.size(0));
      at::mm_out(part, x_, rows.t());
    });
  }

  [[nodiscard]] const at::Tensor& logits() const { return logits_; }

  /// Once the logits are gradients, as the others.
  void write_gradient_of_x(at::Tensor out) const {
    std::optional<at::Tensor> sum;
    for_each_tile(weight_, x_.scalar_type(), kTileBytes, [&](std::int64_t first, const at::Tensor& rows) {
      const at::Tensor part = logits_.narrow(1, first, rows.size(0));
      if (rows.size(0) == logits_.size(1)) {
        at::mm_out(out, part, rows);
        return;
      }
      const at::Tensor product = at::mm(part, rows);
      sum = sum ? sum->add_(product) : product.to(math_type(x_));
    });
    if (sum) out.copy_(*sum);
  }

  void add_gradient_of_bias(at::Tensor out) const { out.add_(logits_.sum(0, false, out.scalar_type())); }

  /// The first group begins the sum: whatever `out` holds is overwritten.
  void add_gradient_of_weight(at::Tensor out, bool first) const {
    if (out.scalar_type() == logits_.scalar_type()) {
      at::addmm_out(out, out, logits_.t(), x_, /*beta=*/first ? 0 : 1);
      return;
    }
    // Of a product, and of what the addition makes of it in the type of the sum.
    const std::int64_t row_bytes = std::max<std::int64_t>(x_.size(1) * (x_.element_size() + out.element_size()), 1);
    const std::int64_t step = std::max<std::int64_t>(kTileBytes / row_bytes, 1);
    for (std::int64_t row = 0; row < out.size(0); row += step) {
      const std::int64_t count = std::min(step, out.size(0) - row);
      at::Tensor part = out.narrow(0, row, count);
      const at::Tensor product = at::mm(logits_.narrow(1, row, count).t(), x_);
      if (first) {
        part.copy_(product);
      } else {
        part.add_(product);
      }
    }
  }

  /// What sums over many rows are kept in.
  static at::ScalarType math_type(const at::Tensor& x) {
    return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  }

 private:
  at::Tensor x_;
  const Matrix& weight_;
  at::Tensor logits_;
};

/// In as few groups as the tile allows, and all as long: the matrix is gone through for each, however few its rows.
std::int64_t rows_at_once(std::int64_t rows, Bytes row_bytes, Bytes tile) {
  const Bytes groups = std::max<Bytes>((rows * row_bytes + tile - 1) / tile, 1);
  return std::max<std::int64_t>((rows + groups - 1) / groups, 1);
}

/// Throws Error for a target that is no column.
void check_targets(const at::Tensor& targets, std::int64_t ignored, std::int64_t columns) {
  const at::Tensor wrong = targets.ne(ignored).logical_and_(targets.lt(0).logical_or_(targets.ge(columns)));
  if (!wrong.any().item<bool>()) return;
  const auto position = wrong.nonzero()[0].item<std::int64_t>();
  throw Error(
      fmt::format("linear cross-entropy: target {} at position {} is not in [0, {}), and not {}, which does not count",
                  targets[position].item<std::int64_t>(), position, columns, ignored));
}

/// Gradients that are not wanted are empty.
Results kernel(const at::Tensor& x, const at::Tensor& stored, const std::optional<at::Tensor>& bias,
               std::int64_t format, const at::Tensor& targets, const std::optional<at::Tensor>& scale,
               std::int64_t tile_bytes, at::ArrayRef<double> terms, std::int64_t ignored, bool gradient_of_x,
               bool gradient_of_weight, bool gradient_of_bias) {
  if (tile_bytes < 1) {
    throw UsageError(fmt::format(
        "linear cross-entropy: the tile is {} bytes; it takes 1 or more, as the logits that are computed at "
        "a time",
        tile_bytes));
  }
  const Matrix weight = plain_or_packed(stored, format, x.scalar_type());
  const std::int64_t rows = x.size(0), width = x.size(1), vocabulary = rows_of(weight);
  check_targets(targets, ignored, vocabulary);
  const std::int64_t step = rows_at_once(rows, std::max<std::int64_t>(vocabulary, 1) * x.element_size(), tile_bytes);
  const auto counted = targets.ne(ignored).sum().item<std::int64_t>();
  const auto sums = x.options().dtype(Group::math_type(x));
  at::Tensor loss = at::zeros({}, x.options().dtype(at::kDouble));
  at::Tensor of_x = gradient_of_x ? at::empty_like(x) : at::empty({0}, x.options());
  // Summed over groups: not to be rounded to a short type in between.
  at::Tensor of_weight = !gradient_of_weight ? at::empty({0}, sums)
                         : rows > 0          ? at::empty({vocabulary, width}, sums)
                                             : at::zeros({vocabulary, width}, sums);
  at::Tensor of_bias = at::zeros({gradient_of_bias ? vocabulary : 0}, sums);
  const at::Tensor room = at::empty({std::min(step, rows), vocabulary}, x.options());
  // Without a target the loss is nan, and no gradient is.
  const double mean = (scale ? scale->item<double>() : 1) / static_cast<double>(std::max<std::int64_t>(counted, 1));
  const bool differentiated = gradient_of_x || gradient_of_weight || gradient_of_bias;
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const Group group(x.narrow(0, first, count), weight, room.narrow(0, 0, count));
    const Logits logits{
        .values = group.logits(), .targets = targets.narrow(0, first, count), .bias = bias, .ignored = ignored};
    loss.add_(softmax_loss(logits, terms_of(terms), differentiated ? mean : 0).sum());
    if (gradient_of_x) group.write_gradient_of_x(of_x.narrow(0, first, count));
    if (gradient_of_weight) group.add_gradient_of_weight(of_weight, first == 0);
    if (gradient_of_bias) group.add_gradient_of_bias(of_bias);
  }
  return {loss.div_(static_cast<double>(counted)).to(sums.dtype()), of_x, of_weight, of_bias};
}

const auto& loss_op() {
  static const auto op = operator_of<decltype(kernel)>("snug::linear_cross_entropy");
  return op;
}

class LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                                                const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                                                std::int64_t format, const at::Tensor& targets,
                                                const std::optional<at::Tensor>& scale, std::int64_t tile,
                                                at::ArrayRef<double> terms, std::int64_t ignored, bool of_x,
                                                bool of_weight, bool of_bias) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [loss, gradient_of_x, gradient_of_weight, gradient_of_bias] =
        loss_op().call(x, weight, bias, format, targets, scale, tile, terms, ignored, of_x, of_weight, of_bias);
    context->save_for_backward({gradient_of_x, gradient_of_weight, gradient_of_bias});
    context->saved_data["weight"] = static_cast<std::int64_t>(weight.scalar_type());
    if (bias) context->saved_data["bias"] = static_cast<std::int64_t>(bias->scalar_type());
    // Now: it may be written in place before backward.
    if (scale) context->saved_data["scale"] = scale->item<double>();
    context->mark_non_differentiable({gradient_of_x, gradient_of_weight, gradient_of_bias});
    context->set_materialize_grads(false);  // else backward gets zeros for these
    return {loss, gradient_of_x, gradient_of_weight, gradient_of_bias};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    only_once("linear cross-entropy");
    const auto saved = context->get_saved_variables();
    auto& types = context->saved_data;
    const at::Tensor factor = types.count("scale") > 0 ? gradients[0].div(types["scale"].toDouble()) : gradients[0];
    // Saved for this alone: a gradient as large as W is not made a second time.
    const bool last = !torch::autograd::get_current_graph_task_keep_graph();
    const auto scaled = [&](std::size_t i, at::ScalarType dtype) {
      return (last ? at::Tensor(saved[i]).mul_(factor) : saved[i].mul(factor)).to(dtype);
    };
    const auto type_of = [&](const char* name) { return static_cast<at::ScalarType>(types[name].toInt()); };
    at::Tensor of_x, of_weight, of_bias;
    if (context->needs_input_grad(0)) of_x = scaled(0, saved[0].scalar_type());
    if (context->needs_input_grad(1)) of_weight = scaled(1, type_of("weight"));
    if (types.count("bias") > 0 && context->needs_input_grad(2)) of_bias = scaled(2, type_of("bias"));
    return {of_x, of_weight, of_bias, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  }
};

Results loss_with_autograd(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           std::int64_t format, const at::Tensor& targets, const std::optional<at::Tensor>& scale,
                           std::int64_t tile, at::ArrayRef<double> terms, std::int64_t ignored, bool of_x,
                           bool of_weight, bool of_bias) {
  const auto results = LinearCrossEntropy::apply(x, weight, bias, format, targets, scale, tile, terms, ignored, of_x,
                                                 of_weight, of_bias);
  return {results[0], results[1], results[2], results[3]};
}

Results loss_with_autocast(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                           std::int64_t format, const at::Tensor& targets, const std::optional<at::Tensor>& scale,
                           std::int64_t tile, at::ArrayRef<double> terms, std::int64_t ignored, bool of_x,
                           bool of_weight, bool of_bias) {
  const c10::DeviceType device = x.device().type();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto cast = [&](const at::Tensor& t) {
    return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
  };
  const std::optional<at::Tensor> cast_bias = bias ? std::optional(cast(*bias)) : std::nullopt;
  // The kernel casts the weight: its gradient, a sum in fp32, is then that of the weight as it is, without a copy in
  // either type.
  return loss_op().call(cast(x), weight, cast_bias, format, targets, scale, tile, terms, ignored, of_x, of_weight,
                        of_bias);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def(
      "linear_cross_entropy(Tensor x, Tensor weight, Tensor? bias, int format, Tensor targets, Tensor? scale, int "
      "tile, float[] terms, int ignored, bool of_x, bool of_weight, bool of_bias) -> (Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) { library.impl("linear_cross_entropy", kernel); }
TORCH_LIBRARY_IMPL(snug, Autograd, library) { library.impl("linear_cross_entropy", loss_with_autograd); }
TORCH_LIBRARY_FRAGMENT(snug, library) { in_mixed_precision(library, "linear_cross_entropy", loss_with_autocast); }

at::Tensor linear_cross_entropy(const at::Tensor& x, const Matrix& weight, const at::Tensor& targets,
                                const LinearLoss& loss) {
  const auto& [tile, terms, ignored, bias, scale] = loss;
  if (x.dim() < 1 || x.size(-1) != columns_of(weight) || targets.sizes() != x.sizes().slice(0, x.dim() - 1)) {
    throw Error(fmt::format(
        "linear cross-entropy: inputs of shape {}, a matrix of {}x{} and targets of shape {} do not belong together",
        fmt::join(x.sizes(), "x"), rows_of(weight), columns_of(weight), fmt::join(targets.sizes(), "x")));
  }
  if (bias.defined() && (bias.dim() != 1 || bias.size(0) != rows_of(weight))) {
    throw Error(
        fmt::format("linear cross-entropy: a bias of shape {} beside a matrix of {}x{}; it has one number a row",
                    fmt::join(bias.sizes(), "x"), rows_of(weight), columns_of(weight)));
  }
  if (scale.defined() && scale.numel() != 1) {
    throw Error(
        fmt::format("linear cross-entropy: a scale of shape {}; it is one number", fmt::join(scale.sizes(), "x")));
  }
  const bool in_range =
      terms.label_smoothing >= 0 && terms.label_smoothing <= 1 && terms.z_loss >= 0 && terms.soft_cap >= 0;
  if (!in_range) {  // or not a number
    throw Error(fmt::format(
        "linear cross-entropy: label smoothing {}, z-loss {} and soft cap {}; the first is in [0, 1], and none "
        "is below 0",
        terms.label_smoothing, terms.z_loss, terms.soft_cap));
  }
  const auto* const plain = std::get_if<at::Tensor>(&weight);
  const auto* const packed = std::get_if<PackedMatrix>(&weight);
  const auto wanted = [graded = at::GradMode::is_enabled()](const at::Tensor* t) {
    return graded && t != nullptr && t->defined() && t->requires_grad();
  };
  const auto results = loss_op().call(x.reshape({-1, x.size(-1)}), plain != nullptr ? *plain : packed->blocks,
                                      bias.defined() ? std::optional(bias) : std::nullopt,
                                      plain != nullptr ? kPlain : static_cast<std::int64_t>(packed->format),
                                      targets.reshape(-1), scale.defined() ? std::optional(scale) : std::nullopt,
                                      tile.logits, {terms.label_smoothing, terms.z_loss, terms.soft_cap}, ignored,
                                      wanted(&x), wanted(plain), wanted(&bias));
  return std::get<0>(results);
}

}  // namespace snug::ops
