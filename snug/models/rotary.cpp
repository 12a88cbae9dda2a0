#include "snug/models/rotary.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "snug/base/errors.h"
#include "snug/ops/rotary.h"

namespace snug::models {
namespace {

/// Turns per position, fp32 (width / 2), and what cosines and sines are multiplied by.
struct Frequencies {
  at::Tensor turns;
  double amplitude = 1;
};

/// Number by number as in the reference: in fp32, and not as accurately as can be.
at::Tensor wavelengths(double base, std::int64_t width) {
  const at::Tensor exponents = at::arange(0, width, 2, at::kLong).to(at::kFloat) / static_cast<double>(width);
  return at::pow(base, exponents);
}

at::Tensor plain_turns(double base, std::int64_t width) { return 1.0 / wavelengths(base, width); }

struct FrequenciesOf {
  const RotaryOptions& options;
  std::int64_t length;  ///< of the sequence so far

  Frequencies operator()(const NoScaling&) const { return {plain_turns(options.base, options.width)}; }

  Frequencies operator()(const LinearScaling& s) const { return {plain_turns(options.base, options.width) / s.factor}; }

  Frequencies operator()(const DynamicScaling& s) const {
    const auto reached = static_cast<double>(std::max(length, s.trained_length));
    const auto width = static_cast<double>(options.width);
    const double stretch = s.factor * reached / static_cast<double>(s.trained_length) - (s.factor - 1);
    return {plain_turns(options.base * std::pow(stretch, width / (width - 2)), options.width)};
  }

  Frequencies operator()(const Llama3Scaling& s) const {
    const auto trained = static_cast<double>(s.trained_length);
    const double longest = trained / s.low_frequency_factor, shortest = trained / s.high_frequency_factor;
    const at::Tensor turns = plain_turns(options.base, options.width);
    const at::Tensor waves = 2 * std::numbers::pi / turns;
    const at::Tensor slowed = at::where(waves > longest, turns / s.factor, turns);
    const at::Tensor share =
        (trained / waves - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
    const at::Tensor blended = (1 - share) * slowed / s.factor + share * slowed;
    return {at::where((waves >= shortest).logical_and(waves <= longest), blended, slowed)};
  }

  Frequencies operator()(const YarnScaling& s) const {
    const auto width = static_cast<double>(options.width);
    const auto dimension = [&](double rotations) {
      return width * std::log(static_cast<double>(s.trained_length) / (rotations * 2 * std::numbers::pi)) /
             (2 * std::log(options.base));
    };
    double low = dimension(s.fast_rotations), high = dimension(s.slow_rotations);
    if (s.whole_dimensions) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, width - 1);
    if (low == high) high += 0.001;
    const at::Tensor ramp = ((at::arange(options.width / 2, at::kFloat) - low) / (high - low)).clamp(0, 1);
    const at::Tensor waves = wavelengths(options.base, options.width);
    const at::Tensor plain = 1.0 / waves, slowed = 1.0 / (s.factor * waves), extrapolated = 1 - ramp;
    return {slowed * (1 - extrapolated) + plain * extrapolated,
            s.attention_factor.value_or(yarn_temperature(s.factor))};
  }

  Frequencies operator()(const DividedFrequencies& s) const {
    if (s.divisors.numel() != options.width / 2) {
      throw UsageError(fmt::format("rotary: {} divisors for the {} frequencies of heads of width {}",
                                   s.divisors.numel(), options.width / 2, options.width));
    }
    return {plain_turns(options.base, options.width) / s.divisors};
  }
};

}  // namespace

RotaryTable rotary_table(const RotaryOptions& options, const Positions& of, at::Device device) {
  const at::NoGradGuard no_grad;
  const Frequencies frequencies = std::visit(FrequenciesOf{options, of.length}, options.scaling);
  const at::Tensor positions = at::arange(of.first, of.first + of.count, at::kFloat);
  const at::Tensor half = at::outer(positions, frequencies.turns);
  const at::Tensor angles = at::cat({half, half}, 1);
  return {(angles.cos() * frequencies.amplitude).to(device), (angles.sin() * frequencies.amplitude).to(device)};
}

at::Tensor rotate(const at::Tensor& x, const RotaryTable& table) { return ops::rotate(x, table.cosines, table.sines); }

}  // namespace snug::models
