#pragma once

#include <cstdint>

namespace snug::optim {

/// Linear warm-up to `peak`, then a cosine down to final_fraction * peak at the last step.
struct WarmupCosine {
  double peak = 3e-4;
  std::int64_t warmup_steps = 0;
  std::int64_t steps = 1;  ///< of the whole run
  double final_fraction = 0.1;

  /// The learning rate of step `step`, from 0.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace snug::optim
