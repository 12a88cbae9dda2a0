#include "snug/ops/packed_linear.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>

#include "snug/base/errors.h"
#include "snug/ops/registered.h"
#include "snug/ops/row_tiles.h"

namespace snug::ops {
namespace {

using Product = at::Tensor(const at::Tensor&, const at::Tensor&, std::int64_t);

PackedMatrix packed(const at::Tensor& blocks, std::int64_t format) {
  return {static_cast<BlockFormat>(format), blocks};
}

/// (..., last) as a matrix.
at::Tensor flat(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

at::Tensor shaped_as(const at::Tensor& rows, const at::Tensor& like) {
  auto sizes = like.sizes().vec();
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

at::Tensor forward_kernel(const at::Tensor& x, const at::Tensor& blocks, std::int64_t format) {
  const PackedMatrix matrix = packed(blocks, format);
  const at::Tensor in = flat(x);
  at::Tensor out = at::empty({in.size(0), matrix.rows()}, in.options());
  for_each_tile(matrix, in.scalar_type(), kTileBytes, [&](std::int64_t first, const at::Tensor& rows) {
    at::Tensor part = out.narrow(1, first, rows.size(0));
    at::mm_out(part, in, rows.t());
  });
  return shaped_as(out, x);
}

/// The gradient of x.
at::Tensor backward_kernel(const at::Tensor& gradient, const at::Tensor& blocks, std::int64_t format) {
  const PackedMatrix matrix = packed(blocks, format);
  const at::Tensor out = flat(gradient);
  at::Tensor in;
  for_each_tile(matrix, out.scalar_type(), kTileBytes, [&](std::int64_t first, const at::Tensor& rows) {
    const at::Tensor part = out.narrow(1, first, rows.size(0));
    if (rows.size(0) == matrix.rows()) {
      in = at::mm(part, rows);
    } else {
      // Sums over several groups of rows are not to be rounded to a short type in between.
      if (!in.defined()) in = at::zeros({out.size(0), matrix.columns()}, out.options().dtype(at::kFloat));
      in.add_(at::mm(part, rows));
    }
  });
  return shaped_as(in.to(out.scalar_type()), gradient);
}

const auto& forward_op() {
  static const auto op = operator_of<Product>("snug::packed_linear");
  return op;
}

const auto& backward_op() {
  static const auto op = operator_of<Product>("snug::packed_linear_backward");
  return op;
}

class PackedLinear : public torch::autograd::Function<PackedLinear> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& blocks,
                            std::int64_t format) {
    context->save_for_backward({blocks});
    context->saved_data["format"] = format;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return forward_op().call(x, blocks, format);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    only_once("packed linear");
    const auto saved = context->get_saved_variables();
    return {backward_op().call(gradients[0], saved[0], context->saved_data["format"].toInt()), {}, {}};
  }
};

at::Tensor product_with_autograd(const at::Tensor& x, const at::Tensor& blocks, std::int64_t format) {
  return PackedLinear::apply(x, blocks, format);
}

at::Tensor product_with_autocast(const at::Tensor& x, const at::Tensor& blocks, std::int64_t format) {
  const c10::DeviceType device = x.device().type();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  return forward_op().call(at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), x, device), blocks,
                           format);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("packed_linear(Tensor x, Tensor blocks, int format) -> Tensor");
  library.def("packed_linear_backward(Tensor gradient, Tensor blocks, int format) -> Tensor");
}
TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("packed_linear", forward_kernel);
  library.impl("packed_linear_backward", backward_kernel);
}
TORCH_LIBRARY_IMPL(snug, Autograd, library) { library.impl("packed_linear", product_with_autograd); }
TORCH_LIBRARY_FRAGMENT(snug, library) { in_mixed_precision(library, "packed_linear", product_with_autocast); }

at::Tensor packed_linear(const at::Tensor& x, const PackedMatrix& matrix) {
  if (x.dim() < 1 || x.size(-1) != matrix.columns()) {
    throw Error(fmt::format("packed linear: an input of shape {} and a matrix of {}x{} do not multiply",
                            fmt::join(x.sizes(), "x"), matrix.rows(), matrix.columns()));
  }
  return forward_op().call(x, matrix.blocks, static_cast<std::int64_t>(matrix.format));
}

}  // namespace snug::ops
