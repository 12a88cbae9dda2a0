#include "snug/ops/sync_batch_norm.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <vector>

#include "snug/ops/held_group.h"
#include "snug/ops/registered.h"

namespace snug::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// All but the channels'.
std::vector<std::int64_t> reduced(const at::Tensor& x) {
  std::vector<std::int64_t> dimensions{0};
  for (std::int64_t d = 2; d < x.dim(); ++d) dimensions.push_back(d);
  return dimensions;
}

/// One number per channel, as it stands in the shape of x.
at::Tensor in_shape_of(const at::Tensor& x, const at::Tensor& of_channels) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[1] = -1;
  return of_channels.view(sizes);
}

/// What moments have: fp32, or as many bits as x.
at::ScalarType of_moments(const at::Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

struct Moments {
  at::Tensor mean, variance, count;
};

/// Of all processes' rows, by each one's own (Chan et al. 1979).
Moments moments_of_all(const at::Tensor& x, TensorGroup& group) {
  const std::int64_t rows = x.numel() / x.size(1);
  const auto none = [&] { return at::zeros({x.size(1)}, x.options().dtype(of_moments(x))); };  // which has no moments
  const auto [variance, mean] =
      rows == 0 ? std::tuple(none(), none()) : at::var_mean(x.to(of_moments(x)), reduced(x), /*unbiased=*/false);
  const at::Tensor count = at::full_like(mean, static_cast<double>(rows));
  const at::Tensor mine = at::stack({count, mean, variance}).to(at::kDouble).unsqueeze(0);
  const at::Tensor all = group.gather(mine, 0);  // by rank: how many, mean, variance
  const at::Tensor counts = all.select(1, 0), means = all.select(1, 1), variances = all.select(1, 2);
  const at::Tensor total = counts.sum(0);
  const at::Tensor middle = (counts * means).sum(0) / total;
  const at::Tensor squares = (counts * (variances + (means - middle).square())).sum(0);
  const at::ScalarType type = of_moments(x);
  return {middle.to(type), (squares / total).to(type), total.select(0, 0).to(type)};
}

class SyncBatchNorm : public torch::autograd::Function<SyncBatchNorm> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                               const at::Tensor& bias, double epsilon, const LayerGroup& group) {
    hold_group(context, group);
    const Moments all = moments_of_all(x, *group);
    // LibTorch's kernels divide by the number of rows.
    at::Tensor values = x.numel() == 0
                            ? at::empty_like(x)
                            : std::get<0>(at::native_batch_norm(x, weight, bias, all.mean, all.variance,
                                                                /*training=*/false, /*momentum=*/0, epsilon));
    context->save_for_backward({x, weight, all.mean, all.variance, all.count});
    context->saved_data["epsilon"] = epsilon;
    context->mark_non_differentiable({all.mean, all.variance, all.count});
    return {values, all.mean, all.variance, all.count};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    only_once("a batch norm of several processes' rows");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3], &count = saved[4];
    const double epsilon = context->saved_data["epsilon"].toDouble();
    const at::Tensor gradient = gradients[0].contiguous(x.suggest_memory_format());
    const at::Tensor scale = weight.defined() ? weight : at::ones_like(mean);
    // Sums over the rows: of the gradient times what was normalized, and of the gradient.
    const auto sums = x.numel() == 0
                          ? std::tuple(at::Tensor(), at::zeros_like(mean), at::zeros_like(mean))
                          : at::native_batch_norm_backward(gradient, x, scale, mean, variance, {}, {}, /*train=*/false,
                                                           epsilon, std::array<bool, 3>{false, true, true});
    const at::Tensor &of_products = std::get<1>(sums), &of_gradients = std::get<2>(sums);
    at::Tensor of_x;
    if (context->needs_input_grad(0)) {
      const at::Tensor mine = at::stack({of_gradients, of_products}).to(at::kDouble);
      const at::Tensor means = (held_group(context).sum(mine) / count).to(mean.scalar_type());
      const at::Tensor inverse = (variance + epsilon).rsqrt(), slope = scale.to(mean.scalar_type()) * inverse;
      // slope * (gradient - mean of gradients - normalized * mean of products)
      of_x = (x - in_shape_of(x, mean)).mul_(in_shape_of(x, inverse * means.select(0, 1)));
      of_x.add_(in_shape_of(x, means.select(0, 0)));
      of_x = of_x.neg_().add_(gradient).mul_(in_shape_of(x, slope)).to(x.scalar_type());
    }
    const bool has_weight = weight.defined() && context->needs_input_grad(1);
    return {of_x,
            has_weight ? of_products.to(weight.scalar_type()) : at::Tensor(),
            context->needs_input_grad(2) ? of_gradients.to(scale.scalar_type()) : at::Tensor(),
            {},
            {}};
  }
};

}  // namespace

NormalizedBatch sync_batch_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon,
                                const LayerGroup& group) {
  variable_list made = SyncBatchNorm::apply(x, weight, bias, epsilon, group);
  return {.values = made[0], .mean = made[1], .variance = made[2], .count = made[3]};
}

}  // namespace snug::ops
