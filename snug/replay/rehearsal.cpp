#include "snug/replay/rehearsal.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>
#include <unordered_set>

#include "snug/base/errors.h"

namespace snug::replay {
namespace {

/// What an optimizer remembers of its parameters, without the tensors themselves.
auto copy_of_state(const torch::optim::Optimizer& optimizer) {
  std::remove_cvref_t<decltype(optimizer.state())> copy;
  for (const auto& [parameter, state] : optimizer.state()) copy.emplace(parameter, state->clone());
  return copy;
}

/// Gradients as they were when this was made, at its end.
class GradientsAsTheyAre {
 public:
  explicit GradientsAsTheyAre(const torch::optim::Optimizer& optimizer) {
    std::unordered_set<const void*> seen;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& p : group.params()) {
        if (seen.insert(p.unsafeGetTensorImpl()).second) before_.emplace_back(p, p.grad());
      }
    }
  }
  ~GradientsAsTheyAre() {
    for (const auto& [parameter, gradient] : before_) parameter.mutable_grad() = gradient;
  }
  GradientsAsTheyAre(const GradientsAsTheyAre&) = delete;
  GradientsAsTheyAre& operator=(const GradientsAsTheyAre&) = delete;

  /// Of each parameter once.
  [[nodiscard]] const std::vector<std::pair<at::Tensor, at::Tensor>>& before() const { return before_; }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_;
};

/// Steps with gradients of zero, which take no memory, for those that have none.
void make_state_of_the_rest(torch::optim::Optimizer& optimizer) {
  const GradientsAsTheyAre gradients(optimizer);
  bool any = false;
  for (const auto& [parameter, gradient] : gradients.before()) {
    const bool has_none = parameter.requires_grad() && !gradient.defined();
    parameter.mutable_grad() =
        has_none ? at::zeros({}, parameter.options().requires_grad(false)).expand(parameter.sizes()) : at::Tensor();
    any = any || has_none;
  }
  if (any) optimizer.step();
}

}  // namespace

Rehearsal::Rehearsal(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw UsageError(
        "fit: LBFGS runs the step itself, as often as it likes, so that its update cannot be rehearsed; leave "
        "`optimizer` "
        "out, and give `update` what takes its memory");
  }
  const auto before = std::make_shared<std::optional<decltype(copy_of_state(optimizer))>>();
  run = [&optimizer, before] {
    const bool is_first = !*before;
    if (is_first) *before = copy_of_state(optimizer);
    optimizer.step();
    if (is_first) make_state_of_the_rest(optimizer);
    return true;
  };
  forget = [&optimizer, before] {
    if (*before) optimizer.state() = std::move(**before);
    before->reset();
  };
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
}

void check_updates_any(const Rehearsal& update, const std::vector<at::Tensor>& of_step) {
  const std::vector<at::Tensor>& written = update.writes_to.empty() ? update.parameters : update.writes_to;
  if (written.empty()) return;
  std::unordered_set<const void*> trained;
  for (const at::Tensor& p : of_step) trained.insert(p.unsafeGetTensorImpl());
  const auto in_few_bits = [](const at::Tensor& p) {
    return p.scalar_type() == at::kHalf || p.scalar_type() == at::kBFloat16;
  };
  const bool may_have_masters = std::ranges::any_of(of_step, in_few_bits);
  const auto belongs = [&](const at::Tensor& p) {
    return trained.contains(p.unsafeGetTensorImpl()) || p.grad().defined() || (may_have_masters && !in_few_bits(p));
  };
  if (std::ranges::any_of(written, belongs)) return;
  throw UsageError(fmt::format(
      "fit: the sample's step has gradients for none of the optimizer's {} tensors, as those of another model; "
      "give the optimizer of the model that the step trains, or what its update does by `update`",
      written.size()));
}

}  // namespace snug::replay
