#include "snug/ops/rotary.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>

#include "snug/base/errors.h"
#include "snug/memory/parallel_for.h"
#include "snug/ops/cpu_kernels.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kTurnedByAThread = 1 << 14;

at::Tensor composed_turn(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const auto halves = x.chunk(2, -1);
  return x * cosines + at::cat({-halves[1], halves[0]}, -1) * sines;
}

/// Of gradients, which go the other way round: the same turn, of sines whose halves change places and signs.
at::Tensor composed_back(const at::Tensor& of_y, const at::Tensor& cosines, const at::Tensor& sines,
                         at::ScalarType type) {
  const auto halves = (of_y * sines).chunk(2, -1);
  return (of_y * cosines).to(type) + at::cat({halves[1], -halves[0]}, -1).to(type);
}

kernels::RotatedHeads heads_of(const at::Tensor& x, const at::Tensor& y, const at::Tensor& cosines,
                               const at::Tensor& sines) {
  kernels::RotatedHeads heads{.x = nullptr,
                              .of_x = nullptr,
                              .y = y.data_ptr(),
                              .y_type = y.scalar_type(),
                              .cosines = cosines.const_data_ptr(),
                              .sines = sines.const_data_ptr(),
                              .angles_of_batch = cosines.dim() == 4 ? cosines.stride(0) : 0,
                              .heads = x.size(1),
                              .positions = x.size(2),
                              .width = x.size(3),
                              .x_strides = {},
                              .y_strides = {}};
  std::copy_n(x.strides().begin(), 3, heads.x_strides);
  std::copy_n(y.strides().begin(), 3, heads.y_strides);
  return heads;
}

template <class Work>
void for_heads(const at::Tensor& x, const Work& work) {
  const std::int64_t grain = std::max<std::int64_t>(1, kTurnedByAThread / x.size(3));
  memory::parallel_for(0, x.numel() / x.size(3), grain, work);
}

at::Tensor rotate_kernel(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  at::Tensor y = at::empty_like(x, x.options().dtype(cosines.scalar_type()));
  kernels::RotatedHeads heads = heads_of(x, y, cosines, sines);
  heads.x = x.const_data_ptr();
  for_heads(x,
            [&](std::int64_t first, std::int64_t last) { cpu_kernels().rotate(x.scalar_type(), heads, first, last); });
  return y;
}

at::Tensor rotate_back_kernel(const at::Tensor& of_y, const at::Tensor& cosines, const at::Tensor& sines,
                              at::ScalarType type) {
  const at::Tensor above = of_y.stride(3) == 1 ? of_y : of_y.contiguous();
  at::Tensor of_x = at::empty_like(above, above.options().dtype(type));
  kernels::RotatedHeads heads = heads_of(of_x, above, cosines, sines);
  heads.of_x = of_x.mutable_data_ptr();
  for_heads(of_x, [&](std::int64_t first, std::int64_t last) { cpu_kernels().rotate_back(type, heads, first, last); });
  return of_x;
}

class Rotate : public torch::autograd::Function<Rotate> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cosines,
                            const at::Tensor& sines) {
    context->save_for_backward({cosines, sines});
    context->saved_data["type"] = static_cast<std::int64_t>(x.scalar_type());
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    static const auto op = operator_of<decltype(rotate_kernel)>("snug::rotate");
    return op.call(x, cosines, sines);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    if (at::GradMode::is_enabled()) return {composed_back(gradients[0], saved[0], saved[1], type), {}, {}};
    static const auto op = operator_of<decltype(rotate_back_kernel)>("snug::rotate_backward");
    return {op.call(gradients[0], saved[0], saved[1], type), {}, {}};
  }
};

bool has_rotary_kernel(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const at::ScalarType result = c10::promoteTypes(x.scalar_type(), cosines.scalar_type());
  const auto table = [&](const at::Tensor& t) {
    return t.is_cpu() && t.is_contiguous() && t.scalar_type() == result && !t.requires_grad();
  };
  const bool takes = result == x.scalar_type() || result == at::kFloat;
  return x.is_cpu() && kernels_take(x.scalar_type()) && x.stride(3) == 1 && x.is_non_overlapping_and_dense() &&
         x.numel() > 0 && takes && table(cosines) && table(sines);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("rotate(Tensor x, Tensor cosines, Tensor sines) -> Tensor");
  library.def("rotate_backward(Tensor of_y, Tensor cosines, Tensor sines, ScalarType type) -> Tensor");
}
TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("rotate", rotate_kernel);
  library.impl("rotate_backward", rotate_back_kernel);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines) {
  const auto is_table = [&](at::IntArrayRef sizes) {
    return sizes == x.sizes().slice(2) || sizes == at::IntArrayRef({x.size(0), 1, x.size(2), x.size(3)});
  };
  const bool fits = x.dim() == 4 && x.size(3) % 2 == 0 && is_table(cosines.sizes()) && sines.sizes() == cosines.sizes();
  if (!fits) {
    throw Error(
        fmt::format("rotate: heads of shape {}, cosines {} and sines {}; they are (batch, heads, positions, "
                    "width) of an even width, and (positions, width) or (batch, 1, positions, width)",
                    fmt::join(x.sizes(), "x"), fmt::join(cosines.sizes(), "x"), fmt::join(sines.sizes(), "x")));
  }
  return has_rotary_kernel(x, cosines, sines) ? Rotate::apply(x, cosines, sines) : composed_turn(x, cosines, sines);
}

}  // namespace snug::ops
