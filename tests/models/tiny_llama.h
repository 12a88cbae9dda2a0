#pragma once

#include "snug/models/llama.h"

namespace snug::models {

/// Two layers with grouped queries, small enough to look at every number.
inline LlamaOptions tiny_llama() {
  return {.layers = 2,
          .width = 32,
          .inner_width = 64,
          .heads = 4,
          .key_heads = 2,
          .vocabulary = 64,
          .sequence = 40,
          .norm_epsilon = 1e-5,
          .rotary = {.width = 8, .base = 10000, .scaling = NoScaling{}},
          .tied = true};
}

}  // namespace snug::models
