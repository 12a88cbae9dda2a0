#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace snug::replay {

/// The optimizer step as it is run while a step is recorded, so that plans know its memory and the state that it makes.
/// It runs after the recorded backward pass, twice, with that pass's gradients. What its operators write is put back
/// afterwards (see UndoneWrites), and random generators too (see UndoneDraws). What it makes at its first call and
/// keeps is its own to forget: a function that makes an optimizer's state must come with `forget`.
struct Rehearsal {
  /// What run() writes of what was there before the step.
  enum class Writes : std::uint8_t {
    Anything,  ///< it is copied, and put back
    Nothing    ///< that has other bits afterwards: nothing is copied
  };
  std::function<bool()> run;  ///< false: there is nothing to update after all. Empty: no optimizer step is known
  /// Makes the state that each() would make at its first call, before the step runs. What it writes is put back.
  std::function<void()> prepare = {};
  /// Of one parameter, where its gradient has been accumulated: an optimizer that updates in the backward pass, see
  /// GradientHooks. It may let go of the gradient. Beside run(), or in its place.
  std::function<void(const at::Tensor& parameter)> each = {};
  std::function<void()> forget = {};        ///< lets go of the state that run() has made, so that it is as before
  std::vector<at::Tensor> parameters = {};  ///< whose gradients are put aside before the step runs, where known
  std::vector<at::Tensor> writes_to = {};   ///< what it updates, where known; none: the parameters
  Writes writes = Writes::Anything;

  Rehearsal() = default;
  template <std::invocable Run>
  Rehearsal(Run update)  // NOLINT(google-explicit-constructor): an update is one
      : run([update = std::move(update)]() mutable {
          update();
          return true;
        }) {}
  /// A step of one of LibTorch's optimizers, which must outlive this. State that it will make of parameters which this
  /// step has no gradient for, as other steps may, is made as well.
  Rehearsal(torch::optim::Optimizer& optimizer);  // NOLINT(google-explicit-constructor)
  /// Of one that can rehearse a step itself: rehearse() takes the memory of a step and changes nothing but gradients.
  template <class Optimizer>
  requires requires(Optimizer& optimizer) { optimizer.rehearse(); }
  Rehearsal(Optimizer& optimizer)  // NOLINT(google-explicit-constructor)
      : Rehearsal([&optimizer] { optimizer.rehearse(); }) {
    parameters = optimizer.parameters();
    writes = Writes::Nothing;
  }

  explicit operator bool() const noexcept { return run != nullptr; }
};

/// After a backward pass: throws UsageError where all that the update is known to write belongs to another model, as no
/// gradient is for it, and it is neither of the step's parameters nor master copies of those.
void check_updates_any(const Rehearsal& update, const std::vector<at::Tensor>& of_step);

}  // namespace snug::replay
