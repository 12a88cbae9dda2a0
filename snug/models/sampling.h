#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>

namespace snug::models {

/// The likeliest token, the first of equals.
struct Greedy {};
/// Drawn by probability: of logits over the temperature, from the fewest tokens that have at least `top_p` together
/// (nucleus sampling, Holtzman et al. 2020).
struct Nucleus {
  double temperature = 1;  ///< more than 0
  double top_p = 1;        ///< in (0, 1]
};
using Sampling = std::variant<Greedy, Nucleus>;

/// A token by its logits, of one dimension.
std::int64_t sample(const at::Tensor& logits, const Sampling& sampling, at::Generator& generator);

}  // namespace snug::models
