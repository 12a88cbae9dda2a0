#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/record/recording.h"
#include "snug/replay/operator_log.h"
#include "snug/replay/repeatable_call.h"
#include "snug/replay/rerun.h"

namespace snug::replay {

class SavedPlace;

/// One checkpoint in rerun mode: while its forward runs, autograd saves only places; the first unpack in a backward
/// pass runs the function again and fills them. Shared by the hooks; unpacking takes its mutex.
class RerunFrame : public std::enable_shared_from_this<RerunFrame> {
 public:
  /// For the call that is about to be made on this thread; see RepeatableCall.
  RerunFrame(RepeatableCall::Function function, const std::vector<at::Tensor>& arguments, Rerun options);
  ~RerunFrame();
  RerunFrame(const RerunFrame&) = delete;
  RerunFrame& operator=(const RerunFrame&) = delete;

  /// Hooks for one tensor that autograd saves in the forward pass, or in a rerun.
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks();

  /// Where this run's operators are to be noted; nullptr without `debug`.
  std::vector<std::string>* log();

  /// The scope around the function's call in forward has ended.
  void forward_is_over() noexcept;
  /// Whether the frame wants to see this run's operators before they run.
  [[nodiscard]] bool watches() const noexcept;
  /// An operator of this run is about to run. Throws when nothing more is needed.
  void before_operator(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

 private:
  class ForwardHook;
  class RerunHook;
  struct Recent;
  struct State;
  struct StopRerun;

  void add(const std::shared_ptr<SavedPlace>& place, const at::Tensor& tensor);
  void fill(const at::Tensor& tensor);
  at::Tensor get(SavedPlace& place);
  void is_final(const Recent& recent);
  void rerun();
  [[noreturn]] void stop();
  void clear();

  std::unique_ptr<State> state_;
};

/// While it lives, what autograd saves on this thread goes to the frame, except in regions and checkpoints that are
/// opened inside, and in backward passes that the function runs itself.
class RerunFrameScope {
 public:
  explicit RerunFrameScope(std::shared_ptr<RerunFrame> frame);
  ~RerunFrameScope();
  RerunFrameScope(const RerunFrameScope&) = delete;
  RerunFrameScope& operator=(const RerunFrameScope&) = delete;

 private:
  std::shared_ptr<RerunFrame> previous_;
  const void* previous_tape_;
  int previous_task_;
  std::optional<record::PythonHooksOutside> python_hooks_{std::in_place};
  std::optional<OperatorLog> log_;
  std::optional<record::OperatorGate> gate_;
};

/// The frame that saved tensors of this thread go to now; nullptr when there is none, or a tape is further inside.
const std::shared_ptr<RerunFrame>& innermost_rerun_frame();

}  // namespace snug::replay
