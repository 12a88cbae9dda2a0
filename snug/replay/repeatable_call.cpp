#include "snug/replay/repeatable_call.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "snug/replay/detached.h"
#include "snug/replay/make_node.h"

namespace snug::replay {
namespace {

/// A tensor whose history may have to be made anew, which is_leaf() does not know.
bool is_differentiable_view(const at::Tensor& tensor) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  return view != nullptr && view->has_bw_view();
}

/// The result of some operator, as a rerun sees it: gradients may be asked for, and it may be written.
at::Tensor with_history(const at::Tensor& tensor) {
  at::Tensor copy = detached(tensor);
  torch::autograd::impl::set_gradient_edge(copy, {make_node<torch::autograd::Identity>(), /*input_nr=*/0});
  return copy;
}

}  // namespace

RepeatableCall::RepeatableCall(Function function, const std::vector<at::Tensor>& arguments, const Rerun& options)
    : function_(std::move(function)), grad_mode_(at::GradMode::is_enabled()) {
  // Casts of weights that are in the cache when the function runs again may not have been now.
  autocast_.cache = false;
  for (const at::Tensor& argument : arguments) {
    SavedArgument& a = arguments_.emplace_back();
    if (!argument.defined()) continue;
    a.defined = true;
    const bool leaf = argument.is_leaf() && !is_differentiable_view(argument);
    a.has_history = argument.requires_grad() && !leaf;
    a.saved = torch::autograd::SavedVariable(leaf ? argument : detached(argument), /*is_output=*/false);
  }
  if (!options.preserve_rng_state) return;
  for (at::Generator& generator : record::default_generators()) random_.push_back(record::save_random_state(generator));
}

std::vector<at::Tensor> RepeatableCall::arguments() const {
  std::vector<at::Tensor> arguments;
  for (const SavedArgument& a : arguments_) {
    at::Tensor argument = a.defined ? a.saved.unpack() : at::Tensor();
    arguments.push_back(a.has_history ? with_history(argument) : std::move(argument));
  }
  return arguments;
}

RepeatableCall::ThreadStateScope::ThreadStateScope(const RepeatableCall& call)
    : thread_(call.thread_),
      gates_(seen_by_),
      autocast_(call.autocast_),
      on_cpu_(call.on_cpu_),
      on_accelerators_(call.on_accelerators_),
      denormals_(call.denormals_),
      grad_mode_(call.grad_mode_) {
  for (const record::RandomState& state : call.random_) random_.emplace_back(state);
}

}  // namespace snug::replay
