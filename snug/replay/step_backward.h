#pragma once

#include <variant>

namespace snug::replay {

/// The step function returns its loss, and whoever runs it goes backward from that.
struct ReturnsLoss {};
/// The step function calls backward() itself. A call that returns without having done so has skipped its batch.
struct CallsBackward {};
/// The step function has no backward(), and takes its gradients from torch::autograd::grad().
struct CallsGrad {
  int which = 1;  ///< of its calls is the backward pass; the others, as for a gradient penalty, are not
};

/// How the backward pass of a step begins.
using StepBackward = std::variant<ReturnsLoss, CallsBackward, CallsGrad>;

}  // namespace snug::replay
