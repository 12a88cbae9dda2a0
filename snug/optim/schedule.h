#pragma once

#include <cstdint>
#include <variant>

namespace snug::optim {

/// What a learning rate does behind its warm-up, as a share of its peak.
namespace decays {
/// It stays.
struct Constant {};
/// A straight line down to final_fraction at the last step.
struct Linear {
  double final_fraction = 0.1;
};
/// Half a wave of a cosine down to final_fraction at the last step.
struct Cosine {
  double final_fraction = 0.1;
};
/// It stays, and is a straight line down to final_fraction over the last `steps` (warm-up, stable, decay: Hu et al.
/// 2024).
struct StableThenLinear {
  std::int64_t steps = 1;
  double final_fraction = 0;
};
}  // namespace decays
using Decay = std::variant<decays::Constant, decays::Linear, decays::Cosine, decays::StableThenLinear>;

/// The learning rate of a run: a straight line up to `peak` at the step warmup_steps - 1, and what comes behind it.
struct Schedule {
  double peak = 3e-4;
  std::int64_t warmup_steps = 0;
  std::int64_t steps = 1;  ///< of the whole run
  Decay decay = decays::Cosine{};

  /// The learning rate of step `step`, from 0; of steps past the run's last one, that one's.
  [[nodiscard]] double at(std::int64_t step) const;
};

}  // namespace snug::optim
