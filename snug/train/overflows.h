#pragma once

#include <cstdint>

#include "snug/optim/grad_scaler.h"

namespace snug::train {

/// Steps in a row whose gradients were not finite, under a loss scale that each of them has halved. PyTorch's loops
/// skip such steps for ever.
class Overflows {
 public:
  /// Step `step`, counted from 1, was one. Throws FailedInAll when the scale has fallen below 1 in a long row of them:
  /// then no scale helps.
  void one_more(const optim::GradScaler& scaler, std::int64_t step);
  /// The gradients of a step were finite.
  void end() noexcept { in_a_row_ = 0; }

 private:
  std::int64_t in_a_row_ = 0;
};

}  // namespace snug::train
