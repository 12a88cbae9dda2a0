#pragma once

#include <torch/csrc/autograd/function.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "snug/base/errors.h"
#include "snug/memory/tag.h"
#include "snug/record/recording.h"
#include "snug/replay/record_step.h"

namespace snug::replay {

/// Thrown into a step function that is only recorded, where what it would do next must not happen: its update. Nobody
/// but the one who called the function should catch it.
class UpdateBegins : public Error {
 public:
  UpdateBegins();
};

/// For an OperatorGate: calls `stop` in front of what would write one of these tensors.
record::OperatorGate::Calls before_writes_of(const std::vector<at::Tensor>& tensors, std::function<void()> stop);

/// One call of a step function. Its forward pass is recorded until the backward pass begins: where the function calls
/// backward() itself, or else when it has returned the loss. What it does after a backward() of its own (clipping, the
/// optimizer, a schedule) is its own affair, and is not recorded. The functions are called by the thread that runs the
/// step.
class StepRun {
 public:
  using Roots = torch::autograd::edge_list;
  struct Phases {
    /// The forward pass is over, and nothing is recorded any more. `roots`: where backward begins.
    std::function<void(const Roots& roots)> forward_over;
    /// The backward pass that the function itself has called is over. May stop the run.
    std::function<void(StepRun& run)> backward_over = {};
    /// The function is about to run its update. May stop the run.
    std::function<void(StepRun& run)> update_begins = {};
  };
  StepRun(std::shared_ptr<record::Tape> tape, Phases phases);

  /// Calls the function, and goes backward from what it returned unless it has done so itself; then what it returned
  /// may be undefined. Returns the loss, detached. Throws what the function throws, but for UpdateBegins, and a refusal
  /// to go backward again that the function caught.
  at::Tensor operator()(const Forward& step);

  /// The step that this thread runs, or nullptr: not inside of a backward pass either.
  static StepRun* here();

  /// Around a backward pass that accumulates gradients. Throws UsageError for a second one.
  void backward_begins(const Roots& roots);
  void backward_ends();
  /// Whether its backward pass is over.
  [[nodiscard]] bool went_backward() const noexcept;
  /// The step function is about to update; see Phases.
  void update_begins();
  /// As long as the function runs, it is about to update where it would write one of these tensors.
  void update_begins_at_writes_of(const std::vector<at::Tensor>& tensors);
  /// Ends the function, which is only recorded: throws UpdateBegins, and again where it is caught and the function goes
  /// on to another backward pass or update.
  [[noreturn]] void stop();

 private:
  struct Idle {};  // not begun, or its pass has failed
  struct InForward {
    explicit InForward(const std::shared_ptr<record::Tape>& tape) : recording(tape) {}
    record::Recording recording;
    memory::TagScope tag{memory::Tag::Activations};
  };
  struct InBackward {
    std::optional<memory::TagScope> tag;
  };
  struct Past {};  // of the backward pass
  struct Refused {
    std::exception_ptr why;  // it went backward again
  };
  struct Stopped {
    std::exception_ptr refused;  // before that
  };
  class OnThisThread;

  /// The function is over.
  void leave() noexcept;
  /// Lets go of what a backward pass has left in the engine that failed.
  void forget_backward() noexcept;
  void rethrow_refusal() const;

  std::shared_ptr<record::Tape> tape_;
  Phases phases_;
  std::variant<Idle, InForward, InBackward, Past, Refused, Stopped> state_;
  std::optional<record::OperatorGate> writes_;
  int task_;  // the backward pass that the step is part of
};

}  // namespace snug::replay
