#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <variant>

namespace snug::models {

/// How rotary embeddings reach beyond the length that a model was trained with, by the names of Hugging Face's
/// `rope_type`.
struct NoScaling {};
/// Positions are divided by the factor (Chen et al. 2023).
struct LinearScaling {
  double factor = 1;
};
/// The base grows with a sequence that is longer than trained_length ("dynamic" NTK).
struct DynamicScaling {
  double factor = 1;
  std::int64_t trained_length = 2048;
};
/// Low frequencies are divided by the factor, high ones stay, those between are blended (Llama 3.1).
struct Llama3Scaling {
  double factor = 8, low_frequency_factor = 1, high_frequency_factor = 4;
  std::int64_t trained_length = 8192;
};
/// YaRN (Peng et al. 2023): a ramp over dimensions between interpolated and plain frequencies, and a temperature.
struct YarnScaling {
  double factor = 1, fast_rotations = 32, slow_rotations = 1;
  std::int64_t trained_length = 4096;
  std::optional<double> attention_factor{};  ///< yarn_temperature(factor) unless given
  bool whole_dimensions = true;              ///< the ramp begins and ends at whole dimensions
};

/// YaRN's temperature for a factor, 0.1 `weight` ln(factor) + 1, or 1 for factors up to 1: what cosines and sines are
/// multiplied by.
inline double yarn_temperature(double factor, double weight = 1) {
  return factor > 1 ? 0.1 * weight * std::log(factor) + 1 : 1;
}

/// Each frequency is divided by a number of its own, fp32 (width / 2): what GGUF files have in place of Llama 3's rule.
struct DividedFrequencies {
  at::Tensor divisors;
};

using RotaryScaling =
    std::variant<NoScaling, LinearScaling, DynamicScaling, Llama3Scaling, YarnScaling, DividedFrequencies>;

struct RotaryOptions {
  std::int64_t width = 64;  ///< of a head; even
  double base = 10000;
  RotaryScaling scaling{};
};

/// Cosines and sines of rotary position embeddings (Su et al. 2021), in the halves' layout of Hugging Face's models:
/// the first half of a head's dimensions turns with the second. Both are fp32 of shape (positions, width), or (batch,
/// 1, positions, width).
struct RotaryTable {
  at::Tensor cosines, sines;
};

/// Positions of a sequence: `first` to `first + count - 1` of one that reaches as far as `length`, or no farther.
struct Positions {
  std::int64_t first = 0, count = 0;
  std::int64_t length = first + count;
};

/// The table for positions on a device. Not differentiable.
RotaryTable rotary_table(const RotaryOptions& options, const Positions& of, at::Device device);

/// Turns x (batch, heads, positions, width). The result has the wider type of the two.
at::Tensor rotate(const at::Tensor& x, const RotaryTable& table);

}  // namespace snug::models
