#include "snug/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "snug/base/match.h"

namespace snug::optim {
namespace {

/// From 0 at `first` to 1 at `last`.
double progress(std::int64_t step, std::int64_t first, std::int64_t last) {
  const auto length = static_cast<double>(std::max<std::int64_t>(last - first, 1));
  return std::clamp(static_cast<double>(step - first) / length, 0.0, 1.0);
}

double line_down(double progress, double final_fraction) { return 1.0 - (1.0 - final_fraction) * progress; }

}  // namespace

double Schedule::at(std::int64_t step) const {
  if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  const std::int64_t last = steps - 1;
  const double share = std::visit(
      Match{[](const decays::Constant&) { return 1.0; },
            [&](const decays::Linear& d) { return line_down(progress(step, warmup_steps, last), d.final_fraction); },
            [&](const decays::Cosine& d) {
              const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * progress(step, warmup_steps, last)));
              return d.final_fraction + (1.0 - d.final_fraction) * cosine;
            },
            [&](const decays::StableThenLinear& d) {
              const std::int64_t first = std::max(warmup_steps, last - d.steps);
              return step < first ? 1.0 : line_down(progress(step, first, last), d.final_fraction);
            }},
      decay);
  return peak * share;
}

}  // namespace snug::optim
