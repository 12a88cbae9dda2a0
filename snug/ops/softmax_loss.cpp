#include "snug/ops/softmax_loss.h"

#include <torch/types.h>

#include <algorithm>

#include "snug/memory/parallel_for.h"
#include "snug/ops/cpu_kernels.h"

namespace snug::ops {
namespace {

// Numbers a thread should have to be worth its start.
constexpr std::int64_t kLogitsAThread = 1 << 15;

at::Tensor on_cpu(const Logits& logits, const CrossEntropyTerms& terms, double times) {
  const std::int64_t rows = logits.values.size(0), columns = logits.values.size(1);
  at::Tensor losses = at::empty({rows}, logits.values.options().dtype(at::kDouble));
  const at::Tensor targets = logits.targets.contiguous();
  const at::Tensor bias = logits.bias ? logits.bias->to(logits.values.scalar_type()).contiguous() : at::Tensor();
  const kernels::LogitRows given{.logits = logits.values.data_ptr(),
                                 .bias = bias.defined() ? bias.const_data_ptr() : nullptr,
                                 .columns = columns,
                                 .targets = targets.const_data_ptr<std::int64_t>(),
                                 .ignored = logits.ignored,
                                 .losses = losses.mutable_data_ptr<double>(),
                                 .times = times};
  const auto type = logits.values.scalar_type();
  const std::int64_t grain = std::max<std::int64_t>(kLogitsAThread / std::max<std::int64_t>(columns, 1), 1);
  memory::parallel_for(0, rows, grain, [&](std::int64_t first, std::int64_t last) {
    cpu_kernels().softmax_loss(type, terms, given, first, last);
  });
  return losses;
}

}  // namespace

at::Tensor softmax_loss(const Logits& logits, const CrossEntropyTerms& terms, double times) {
  return logits.values.is_cpu() ? on_cpu(logits, terms, times) : softmax_loss_of_operators(logits, terms, times);
}

at::Tensor softmax_loss_of_operators(const Logits& logits, const CrossEntropyTerms& terms, double times) {
  const at::NoGradGuard no_grad;
  const at::Tensor counted = logits.targets.ne(logits.ignored), picked = logits.targets.where(counted, 0).unsqueeze(1);
  const auto math = logits.values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor x = logits.values.to(math);
  if (logits.bias) x = x + logits.bias->to(math);
  if (terms.soft_cap != 0) x = (x / terms.soft_cap).tanh_().mul_(terms.soft_cap);
  // As few passes over all logits as there can be: they are what it takes.
  at::Tensor log_shares = at::log_softmax(x, 1);
  const at::Tensor of_target = log_shares.gather(1, picked);
  at::Tensor log_sum;
  if (terms.z_loss != 0) log_sum = x.gather(1, picked) - of_target;
  at::Tensor losses = of_target.to(at::kDouble).mul_(terms.label_smoothing - 1);
  if (terms.label_smoothing != 0) losses.sub_(log_shares.mean(1, true), terms.label_smoothing);
  if (terms.z_loss != 0) losses.add_(log_sum.to(at::kDouble).square(), terms.z_loss);
  if (times != 0) {
    at::Tensor gradient = log_shares.exp_();
    if (terms.z_loss != 0) gradient.mul_(log_sum * (2 * terms.z_loss) + 1);
    if (terms.label_smoothing != 0) gradient.sub_(terms.label_smoothing / static_cast<double>(x.size(1)));
    gradient.scatter_(1, picked, terms.label_smoothing - 1, "add");
    if (terms.soft_cap != 0) gradient.mul_(1 - (x / terms.soft_cap).square_());
    at::Tensor values = logits.values;
    at::mul_out(values, gradient, at::where(counted, times, 0.0).to(math).unsqueeze(1));
  }
  return losses.squeeze(1).where(counted, 0);
}

}  // namespace snug::ops
