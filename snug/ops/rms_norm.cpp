#include "snug/ops/rms_norm.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <torch/types.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "snug/memory/parallel_for.h"
#include "snug/ops/cpu_kernels.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::int64_t kNormalizedByAThread = 1 << 14;
// Shorter rows, and one alone, are added up in another order.
constexpr std::int64_t kNarrowest = 8, kFewestRows = 2;

at::ScalarType norm_type(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
std::int64_t rows_of(const at::Tensor& x) { return x.numel() / x.size(-1); }
const void* data_or_null(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

template <class Work>
void for_rows(const at::Tensor& x, const Work& work) {
  const std::int64_t grain = std::max<std::int64_t>(1, kNormalizedByAThread / x.size(-1));
  memory::parallel_for(0, rows_of(x), grain, work);
}

/// The weight in the type that sums are in: those of a module may have another.
at::Tensor weight_for(const at::Tensor& x, const at::Tensor& weight) {
  return weight.defined() ? weight.to(norm_type(x)).contiguous() : at::Tensor();
}

kernels::NormalizedRows rows_for(const at::Tensor& x, const at::Tensor& weight, double epsilon,
                                 const at::Tensor& roots) {
  return {.x = x.const_data_ptr(),
          .delta = nullptr,
          .delta_type = x.scalar_type(),
          .sum = nullptr,
          .weight = data_or_null(weight),
          .y = nullptr,
          .inverse_roots = roots.mutable_data_ptr(),
          .columns = x.size(-1),
          .epsilon = epsilon};
}

/// (sum, y, inverse roots); the sum is x where there is nothing to add, and empty then.
std::tuple<at::Tensor, at::Tensor, at::Tensor> norm_kernel(const at::Tensor& x, const MaybeTensor& delta,
                                                           const MaybeTensor& weight, double epsilon) {
  const at::Tensor w = weight_for(x, given(weight)), y = at::empty_like(x);
  const at::Tensor roots = at::empty({rows_of(x)}, x.options().dtype(norm_type(x)));
  const at::Tensor sum = delta ? at::empty_like(x) : at::empty({0}, x.options());
  kernels::NormalizedRows rows = rows_for(x, w, epsilon, roots);
  rows.y = y.mutable_data_ptr();
  if (delta) {
    rows.delta = delta->const_data_ptr();
    rows.delta_type = delta->scalar_type();
    rows.sum = sum.mutable_data_ptr();
  }
  for_rows(x,
           [&](std::int64_t first, std::int64_t last) { cpu_kernels().rms_norm(x.scalar_type(), rows, first, last); });
  return {sum, y, roots};
}

/// By the operators that LibTorch's own is made of, which go on in the layout that a gradient comes in, and add up in
/// its order.
std::tuple<at::Tensor, at::Tensor> norm_backward_composed(const at::Tensor& of_y, const MaybeTensor& of_sum,
                                                          const at::Tensor& x, const MaybeTensor& weight,
                                                          const at::Tensor& roots, bool of_weight) {
  const at::ScalarType type = norm_type(x);
  const at::Tensor above = of_y.to(type), in = x.to(type), w = weight_for(x, given(weight));
  std::vector<std::int64_t> column = x.sizes().vec();
  column.back() = 1;
  const at::Tensor root = roots.view(column), normal = w.defined() ? above * w : above;
  const at::Tensor straight = normal * root, of_root = (normal * in).sum(-1, /*keepdim=*/true);
  const at::Tensor of_mean = -0.5 * of_root * root.pow(3);
  const at::Tensor by_mean = of_mean.expand(x.sizes()) / static_cast<double>(x.size(-1)) * (2.0 * in);
  at::Tensor of_x;
  if (!of_sum) {
    of_x = (straight + by_mean).to(x.scalar_type());
  } else if (x.scalar_type() == type) {
    of_x = *of_sum + straight + by_mean;
  } else {
    of_x = *of_sum + (straight + by_mean).to(x.scalar_type());
  }
  if (!of_weight) return {of_x, at::empty({0}, x.options())};
  return {of_x, (above * (in * root)).sum_to_size(weight->sizes()).to(weight->scalar_type())};
}

/// (of x, of the weight), the latter empty where it is not wanted.
std::tuple<at::Tensor, at::Tensor> norm_backward_kernel(const at::Tensor& of_y, const MaybeTensor& of_sum,
                                                        const at::Tensor& x, const MaybeTensor& weight,
                                                        const at::Tensor& roots, double epsilon, bool of_weight) {
  if (!of_y.is_contiguous() || (of_sum && !of_sum->is_contiguous()))
    return norm_backward_composed(of_y, of_sum, x, weight, roots, of_weight);
  const at::Tensor w = weight_for(x, given(weight)), of_x = at::empty_like(x);
  at::Tensor of_weights;
  if (of_weight) of_weights = at::empty(x.sizes(), x.options().dtype(norm_type(x)));
  const kernels::NormalizedRows rows = rows_for(x, w, epsilon, roots);
  const kernels::NormalizedGradients gradients{.of_y = of_y.const_data_ptr(),
                                               .of_sum = data_or_null(given(of_sum)),
                                               .of_x = of_x.mutable_data_ptr(),
                                               .of_weights = of_weight ? of_weights.mutable_data_ptr() : nullptr};
  for_rows(x, [&](std::int64_t first, std::int64_t last) {
    cpu_kernels().rms_norm_gradients(x.scalar_type(), rows, gradients, first, last);
  });
  if (!of_weight) return {of_x, at::empty({0}, x.options())};
  return {of_x, of_weights.sum_to_size(weight->sizes()).to(weight->scalar_type())};
}

const auto& norm_op() {
  static const auto op = operator_of<decltype(norm_kernel)>("snug::rms_norm");
  return op;
}
const auto& norm_backward_op() {
  static const auto op = operator_of<decltype(norm_backward_kernel)>("snug::rms_norm_backward");
  return op;
}

/// Whether the kernels have the bits of the LibTorch that runs, on numbers of both signs and several sizes.
bool norm_agrees_at(at::ScalarType type, std::int64_t width) {
  const at::InferenceMode no_graph;
  constexpr std::int64_t kRows = 4;
  const at::Tensor x = (at::linspace(-3, 2, kRows * width, at::kDouble).sin() * 3).to(type).view({kRows, width});
  const at::Tensor weight = at::linspace(0.5, 1.5, width, at::kDouble).to(type);
  const at::Tensor y = std::get<1>(norm_kernel(x, std::nullopt, weight, 1e-5));
  return y.equal(at::rms_norm(x, weight.sizes(), weight, 1e-5));
}

bool norm_agrees(at::ScalarType type) {
  return std::ranges::all_of(std::initializer_list<std::int64_t>{8, 100, 576, 4099},
                             [type](std::int64_t width) { return norm_agrees_at(type, width); });
}

bool has_norm_kernel(const at::Tensor& x, const at::Tensor& weight) {
  const bool whole = x.is_cpu() && x.layout() == at::kStrided && x.dim() > 0 && x.is_contiguous();
  if (!whole || x.size(-1) < kNarrowest || rows_of(x) < kFewestRows) return false;
  // at::mul raises to the wider of two types.
  const bool fits = !weight.defined() || (weight.is_cpu() && weight.dim() == 1 && weight.size(0) == x.size(-1) &&
                                          c10::promoteTypes(weight.scalar_type(), norm_type(x)) == norm_type(x));
  return fits && once_for<norm_agrees>(x.scalar_type());
}

at::Tensor composed_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return at::rms_norm(x, x.sizes().slice(x.dim() - 1), maybe(weight), epsilon);
}

/// By operators that can be differentiated again: (of x, of the weight), undefined where there is none.
variable_list norm_again(const at::Tensor& x, const at::Tensor& weight, double epsilon, const at::Tensor& of_y) {
  variable_list inputs;
  for (const at::Tensor& t : {x, weight}) {
    if (t.defined() && t.requires_grad()) inputs.push_back(t);
  }
  variable_list found = torch::autograd::grad({composed_norm(x, weight, epsilon)}, inputs, {of_y},
                                              /*retain_graph=*/true, /*create_graph=*/true);
  if (!x.requires_grad()) found.insert(found.begin(), at::Tensor());
  found.resize(2);
  return found;
}

/// Results: what is normalized and, where it `passes`, what that is of.
class RmsNorm : public torch::autograd::Function<RmsNorm> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const MaybeTensor& delta,
                               const MaybeTensor& weight, double epsilon, bool passes) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [sum, y, roots] = norm_op().call(x, delta, weight, epsilon);
    context->save_for_backward({delta ? sum : x, given(weight), roots});
    context->set_materialize_grads(false);
    context->saved_data["epsilon"] = epsilon;
    context->saved_data["delta"] = delta ? c10::IValue(static_cast<std::int64_t>(delta->scalar_type())) : c10::IValue();
    if (!passes) return {y};
    return {y, delta ? sum : x};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &roots = saved[2];
    const double epsilon = context->saved_data["epsilon"].toDouble();
    const c10::IValue delta = context->saved_data["delta"];
    const bool of_weight = weight.defined() && context->needs_input_grad(delta.isNone() ? 1 : 2);
    const at::Tensor of_sum = gradients.size() > 1 ? gradients[1] : at::Tensor();
    at::Tensor of_x = of_sum, to_weight;
    if (gradients[0].defined()) {
      if (at::GradMode::is_enabled()) {
        const variable_list all = norm_again(x, weight, epsilon, gradients[0]);
        of_x = of_sum.defined() && all[0].defined() ? of_sum + all[0] : of_sum.defined() ? of_sum : all[0];
        to_weight = all[1];
      } else {
        std::tie(of_x, to_weight) =
            norm_backward_op().call(gradients[0], maybe(of_sum), x, maybe(weight), roots, epsilon, of_weight);
        if (!of_weight) to_weight = at::Tensor();
      }
    }
    at::Tensor of_delta;
    if (!delta.isNone() && of_x.defined()) of_delta = of_x.to(static_cast<at::ScalarType>(delta.toInt()));
    return {of_x, of_delta, to_weight, {}, {}};
  }
};

}  // namespace

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def("rms_norm(Tensor x, Tensor? delta, Tensor? weight, float epsilon) -> (Tensor, Tensor, Tensor)");
  library.def(
      "rms_norm_backward(Tensor of_y, Tensor? of_sum, Tensor x, Tensor? weight, Tensor roots, float epsilon, bool "
      "of_weight) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(snug, CompositeExplicitAutograd, library) {
  library.impl("rms_norm", norm_kernel);
  library.impl("rms_norm_backward", norm_backward_kernel);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  if (!has_norm_kernel(x, weight)) return composed_norm(x, weight, epsilon);
  return RmsNorm::apply(x, MaybeTensor(), maybe(weight), epsilon, /*passes=*/false)[0];
}

StreamAndNormalized rms_norm_of_stream(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                                       double epsilon) {
  const bool adds = delta.defined() && delta.sizes() == x.sizes() && delta.is_cpu() && delta.is_contiguous() &&
                    kernels_take(delta.scalar_type()) &&
                    c10::promoteTypes(x.scalar_type(), delta.scalar_type()) == x.scalar_type();
  if (delta.defined() && !adds) return rms_norm_of_stream(x + delta, {}, weight, epsilon);
  if (!has_norm_kernel(x, weight)) {
    const at::Tensor stream = delta.defined() ? x + delta : x;
    return {stream, composed_norm(stream, weight, epsilon)};
  }
  variable_list both = RmsNorm::apply(x, maybe(delta), maybe(weight), epsilon, /*passes=*/true);
  return {both[1], both[0]};
}

}  // namespace snug::ops
