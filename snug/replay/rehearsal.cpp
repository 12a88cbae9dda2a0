#include "snug/replay/rehearsal.h"

#include <torch/optim/lbfgs.h>

#include <memory>
#include <optional>
#include <type_traits>

#include "snug/base/errors.h"

namespace snug::replay {
namespace {

/// What an optimizer remembers of its parameters, without the tensors themselves.
auto copy_of_state(const torch::optim::Optimizer& optimizer) {
  std::remove_cvref_t<decltype(optimizer.state())> copy;
  for (const auto& [parameter, state] : optimizer.state()) copy.emplace(parameter, state->clone());
  return copy;
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
    if (!*before) *before = copy_of_state(optimizer);
    optimizer.step();
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

}  // namespace snug::replay
