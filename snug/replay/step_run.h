#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"
#include "snug/record/micro_batch.h"
#include "snug/record/recording.h"
#include "snug/replay/record_step.h"
#include "snug/replay/step_backward.h"
#include "snug/replay/updated_leaves.h"

namespace snug::replay {

/// Thrown into a step function that is only recorded, where what it would do next must not happen: its update. Nobody
/// but the one who called the function should catch it.
class UpdateBegins : public Error {
 public:
  UpdateBegins();
};

/// A step function has returned no loss to go backward from, and has called torch::autograd::grad(), which may have
/// been its backward pass.
class HasNoBackward : public UsageError {
 public:
  HasNoBackward(int grad_calls, at::Tensor returned);
  [[nodiscard]] int grad_calls() const noexcept { return grad_calls_; }
  /// What the function returned: perhaps undefined.
  [[nodiscard]] const at::Tensor& returned() const noexcept { return returned_; }

 private:
  int grad_calls_;
  at::Tensor returned_;
};

/// For an OperatorGate: calls `stop` in front of what would write one of these tensors.
record::OperatorGate::Calls before_writes_of(const std::vector<at::Tensor>& tensors, std::function<void()> stop);

/// One call of a step function. Its forward pass is recorded until the backward pass begins: where the function calls
/// backward() itself, or else when it has returned the loss. What it does after a backward() of its own (clipping, the
/// optimizer, a schedule) is its own affair, and is not recorded. A function that says where its micro-batches begin
/// (MicroBatch) has a forward pass of each, on a tape of its own, and a backward pass of each at any time
/// after that. Where it is allowed, a function may also have further passes behind its backward pass, one after the
/// other. The functions are called by the thread that runs the step.
class StepRun : private record::MicroBatchListener {
 public:
  using Roots = torch::autograd::edge_list;
  struct Phases {
    /// A forward pass is about to be recorded, that of the step or of its next micro-batch: on this tape.
    std::function<std::shared_ptr<record::Tape>(int stage)> forward_begins;
    /// It is over, and nothing is recorded any more.
    std::function<void(record::Tape& tape)> forward_over;
    /// The backward pass begins that belongs to it, at `roots`.
    std::function<void(record::Tape& tape, const Roots& roots)> backward_begins = {};
    /// It is over, and has not failed. May stop the run, unless the function is over (function_is_over()).
    std::function<void(StepRun& run, record::Tape& tape)> backward_over = {};
    /// A backward pass that belongs to another one goes through it, too: it has no other.
    std::function<void(record::Tape& tape)> reached = {};
    /// The forward pass of a micro-batch has failed, or a backward pass, and will not go on.
    std::function<void(record::Tape& tape)> failed = {};
    /// The function is about to run its update. May stop the run.
    std::function<void(StepRun& run)> update_begins = {};
    /// The function calls autograd::grad(), and that call is not its backward pass.
    std::function<void(const Roots& roots)> grad_begins = {};
    /// Whether a function may go forward and backward again after its backward pass, as with two optimizers in turns.
    bool allows_further_passes = false;
  };
  explicit StepRun(Phases phases, StepBackward backward = ReturnsLoss{});

  /// Calls the function, and goes backward from what it returned unless it has done so itself; then what it returned
  /// may be undefined. Returns the loss, detached. Throws what the function throws, but for UpdateBegins, and a refusal
  /// to go backward again that the function caught; HasNoBackward.
  at::Tensor operator()(const Forward& step);

  /// The step that this thread runs, or nullptr: not inside of a backward pass either.
  static StepRun* here();

  /// What becomes of the gradients of a pass of autograd.
  enum class Gradients : std::uint8_t { Accumulated, Returned };
  /// A pass of autograd begins: whether it is the step's backward pass. To be asked once of each.
  bool is_backward(const Roots& roots, Gradients gradients);
  /// Around the step's backward pass. Throws UsageError for a second one of the same forward pass.
  void backward_begins(const Roots& roots);
  void backward_ends();
  /// Autograd saves a tensor and no tape records. After a backward pass, where that is allowed, a further pass is
  /// recorded from the next operator on that autograd makes a node for.
  void note_unrecorded_save();
  /// A region is about to begin: after a backward pass, where that is allowed, a further pass with it.
  void region_begins();
  /// Whether a loss that the function returns is made of a micro-batch that has not gone backward: the run goes
  /// backward from it.
  [[nodiscard]] bool is_of_micro_batch(const at::Tensor& loss) const;
  /// Whether its backward pass is over; of several, one of them, and it is in none now.
  [[nodiscard]] bool went_backward() const noexcept;
  /// Whether the function is over, which has not gone backward itself.
  [[nodiscard]] bool function_is_over() const noexcept { return function_is_over_; }
  /// Whether its function may return no loss.
  [[nodiscard]] bool may_return_nothing() const noexcept {
    return went_backward() || grad_calls_ > 0 || !std::holds_alternative<ReturnsLoss>(backward_);
  }
  /// Whether it has said where a micro-batch begins.
  [[nodiscard]] bool has_micro_batches() const noexcept { return micro_batches_; }
  /// The step function is about to update; see Phases.
  void update_begins();
  /// A backward pass is over. As long as the function runs, it is about to update where it would write one of these
  /// tensors, or of those of passes before; of micro-batches, where that has a gradient: what stages of a pipeline
  /// receive is written, too.
  void update_begins_at_writes_of(const std::vector<at::Tensor>& tensors);
  /// Ends the function, which is only recorded: throws UpdateBegins, and again where it is caught and the function goes
  /// on to another backward pass or update.
  [[noreturn]] void stop();

 private:
  /// One forward pass, and the nodes of autograd that it has made, by their sequence numbers, which count those of the
  /// thread that runs the step.
  struct Pass {
    std::shared_ptr<record::Tape> tape;
    std::uint64_t first_node = 0, end_node = 0;
    bool is_micro_batch = false;

    [[nodiscard]] bool made(const torch::autograd::Node& node) const;
  };
  struct Idle {};  // not begun, between micro-batches, or its pass has failed
  struct InForward {
    explicit InForward(Pass of) : pass(std::move(of)), recording(pass.tape) {}
    Pass pass;
    record::Recording recording;
    memory::TagScope tag{memory::Tag::Activations};
  };
  struct InBackward {
    Pass pass;
    std::optional<memory::TagScope> tag;
  };
  struct Past {};  // of a backward pass
  struct Stopped {};
  class OnThisThread;

  void micro_batch_begins(int stage) override;
  void micro_batch_ends() noexcept override;
  void micro_batch_fails() noexcept override;
  void begin_forward(int stage = 0);
  [[nodiscard]] bool may_begin_further_pass() const noexcept;
  void go_backward(const at::Tensor& loss);
  void end_forward();
  /// The pass that has made the roots, or what these are made of, among those that have not gone backward; null where
  /// none of them has. What is made of one that has gone backward is looked at no further: `has_gone` says whether
  /// there is such.
  const Pass* maker_of(const Roots& roots, bool& has_gone) const;
  /// The same for a backward pass, which may begin at nodes that no pass has made: those of another thread, where there
  /// is one pass alone. At the end: there is none.
  std::vector<Pass>::iterator made(const Roots& roots);
  /// Those that a backward pass from these roots goes through have gone backward, where they are micro-batches.
  void reach_others(const Roots& roots);
  [[noreturn]] void refuse(const UsageError& why);
  /// The function is over.
  void leave() noexcept;
  /// Lets go of what a backward pass has left in the engine that failed.
  void forget_backward() noexcept;
  /// A refusal, or a failure that nobody has seen yet.
  void rethrow();

  Phases phases_;
  std::variant<Idle, InForward, InBackward, Past, Stopped> state_;
  std::vector<Pass> forward_over_;  // and not gone backward
  std::vector<Pass> went_;          // backward, without their tapes
  std::exception_ptr refused_;      // it went backward again, which stays so
  UpdatedLeaves leaves_;
  std::optional<record::OperatorGate> writes_;
  std::optional<record::OperatorGate> further_pass_;  // begins it
  std::optional<std::uint64_t> next_node_;            // of autograd, when a tensor was first saved unrecorded
  std::exception_ptr failure_;                        // of the end of a micro-batch
  int task_;                                          // the backward pass that the step is part of
  const StepBackward backward_;
  int grad_calls_ = 0;
  bool micro_batches_ = false, any_went_ = false, function_is_over_ = false;
};

}  // namespace snug::replay
