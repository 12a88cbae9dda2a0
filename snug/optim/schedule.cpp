#include "snug/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace snug::optim {

double WarmupCosine::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const auto length = static_cast<double>(std::max<std::int64_t>(steps - 1 - warmup_steps, 1));
  const double progress = std::clamp(static_cast<double>(step - warmup_steps) / length, 0.0, 1.0);
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (final_fraction + (1.0 - final_fraction) * cosine);
}

}  // namespace snug::optim
