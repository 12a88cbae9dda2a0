#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "snug/models/causal_lm.h"
#include "snug/models/sampling.h"

namespace snug::models {

struct GenerationOptions {
  std::int64_t tokens = 64;  ///< at most
  Sampling sampling = Greedy{};
  std::uint64_t seed = 0;
  std::int64_t below = std::numeric_limits<std::int64_t>::max();  ///< no token from this id on: a model may have more
                                                                  ///< than its tokenizer
  std::vector<std::int64_t> ends{};                               ///< tokens that end the text; they are not part of it
};

/// Tokens that follow a prompt, one by one, with a key-value cache: until one of the ends, or so many, or the length
/// that the model was made for. In evaluation mode and without gradients; the module's mode is then as it was. `seen`
/// is called with each token as it comes. Throws UsageError for an empty prompt, and one that is too long.
std::vector<std::int64_t> generate(CausalLmImpl& model, const std::vector<std::int64_t>& prompt,
                                   const GenerationOptions& options,
                                   const std::function<void(std::int64_t token)>& seen = {});

}  // namespace snug::models
