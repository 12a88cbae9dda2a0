#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/record/recording.h"
#include "snug/replay/operator_log.h"

namespace snug {

/// What a rerun is held against.
enum class DeterminismCheck : std::uint8_t {
  None,      ///< only the number of saved tensors
  Metadata,  ///< shape, dtype and device of each
  Values     ///< their contents too, by a hash: finds functions that compute something else every time
};

/// Backward calls the function again, as torch.utils.checkpoint (use_reentrant=False) does, for functions that compute
/// outside of ATen. Whatever else the function does, it does twice.
struct Rerun {
  bool preserve_rng_state = true;  ///< the default generators of all devices; without it random numbers are new ones
  DeterminismCheck determinism_check = DeterminismCheck::Metadata;
  bool debug = false;      ///< errors tell where the operators of the two runs part; slow
  bool early_stop = true;  ///< leave the function, by an exception, when the last tensor that backward needs is there
};

/// Overrides Rerun::early_stop of the checkpoints that run their forward in its life, on this thread; the innermost
/// wins. As torch.utils.checkpoint.set_checkpoint_early_stop.
class EarlyStopScope {
 public:
  explicit EarlyStopScope(bool early_stop);
  ~EarlyStopScope();
  EarlyStopScope(const EarlyStopScope&) = delete;
  EarlyStopScope& operator=(const EarlyStopScope&) = delete;

 private:
  int previous_;
};

namespace replay {

/// One checkpoint in rerun mode: while its forward runs, autograd saves only places; the first unpack in a backward
/// pass runs the function again and fills them. Shared by the hooks; unpacking takes its mutex.
class RerunFrame : public std::enable_shared_from_this<RerunFrame> {
 public:
  /// Calls the function with the arguments, which stand in this list in the order of their appearance.
  using Call = std::function<void(const std::vector<at::Tensor>&)>;

  /// Keeps what a second run needs of this thread's state. `arguments` are saved as an operator saves its inputs: an
  /// enclosing checkpoint drops them.
  RerunFrame(Call call, const std::vector<at::Tensor>& arguments, Rerun options);
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
  struct Place;
  struct State;
  struct StopRerun;

  void add(const std::shared_ptr<Place>& place, const at::Tensor& tensor);
  void is_final(Place& place, const at::Tensor& tensor, std::size_t index);
  void fill(const at::Tensor& tensor);
  at::Tensor get(const std::shared_ptr<Place>& place);
  void rerun();
  void clear();
  void check_unchanged(const Place& place, const at::Tensor& tensor) const;
  [[nodiscard]] std::string debug_words() const;

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

}  // namespace replay
}  // namespace snug
