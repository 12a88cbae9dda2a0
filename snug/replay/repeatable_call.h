#pragma once

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <deque>
#include <functional>
#include <vector>

#include "snug/record/autocast_state.h"
#include "snug/record/denormals.h"
#include "snug/record/global_settings.h"
#include "snug/record/random_state.h"
#include "snug/record/recording.h"
#include "snug/replay/rerun.h"

namespace snug::replay {

/// A function, and all that calling it once more as it is called now takes: its arguments, and what its results can
/// depend on of this thread's state (autocast, gradient mode, denormal numbers and, if asked for, random generators)
/// and of the process's settings.
class RepeatableCall {
 public:
  /// Calls the function with the arguments, which stand in this list in the order of their appearance.
  using Function = std::function<void(const std::vector<at::Tensor>&)>;

  /// `arguments` are saved as an operator saves its inputs: an enclosing checkpoint drops them.
  RepeatableCall(Function function, const std::vector<at::Tensor>& arguments, const Rerun& options);

  /// The arguments for another call. Throws as autograd does when one of them was modified in place since.
  [[nodiscard]] std::vector<at::Tensor> arguments() const;

  /// While it lives, this thread's state is what it was when the call was made.
  class ThreadStateScope {
   public:
    explicit ThreadStateScope(const RepeatableCall& call);

   private:
    record::GatesInBackward::Gates seen_by_ = record::GatesInBackward::now();  // which `thread_` does not keep
    at::ThreadLocalStateGuard thread_;
    record::GatesInBackward gates_;
    record::AutocastScope autocast_;
    record::GlobalSettingsScope on_cpu_, on_accelerators_;
    record::DenormalScope denormals_;
    std::deque<record::RandomStateScope> random_;
    at::AutoGradMode grad_mode_;
  };

  void operator()(const std::vector<at::Tensor>& arguments) const { function_(arguments); }

 private:
  /// Saved without its history: a node that lives on, or is looked at sooner, because of a checkpoint can change the
  /// order in which autograd adds up (views that were written, second order).
  struct SavedArgument {
    torch::autograd::SavedVariable saved;
    bool defined = false;
    bool has_history = false;
  };

  Function function_;
  std::vector<SavedArgument> arguments_;
  at::ThreadLocalState thread_;
  record::AutocastState autocast_ = record::AutocastState::now();
  record::GlobalSettings on_cpu_ = record::GlobalSettings::now(record::GlobalSettings::Of::TheCpu);
  record::GlobalSettings on_accelerators_ = record::GlobalSettings::now(record::GlobalSettings::Of::Accelerators);
  record::Denormals denormals_ = record::denormals();
  bool grad_mode_;
  std::vector<record::RandomState> random_;
};

}  // namespace snug::replay
