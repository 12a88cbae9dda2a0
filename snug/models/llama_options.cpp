#include <array>

#include "snug/models/llama.h"
#include "snug/models/released.h"

namespace snug::models {
namespace {

RotaryOptions rotary(std::int64_t width, double base, RotaryScaling scaling = NoScaling{}) {
  return {width, base, scaling};
}

Llama3Scaling llama3(double factor) { return {.factor = factor}; }

/// As their config.json files have them.
const std::array<Released<LlamaOptions>, 9>& released_llama() {
  static const std::array<Released<LlamaOptions>, 9> all{{
      {"SmolLM2-135M", {30, 576, 1536, 9, 3, 49152, 8192, 1e-5, rotary(64, 100000), true}},
      {"SmolLM2-360M", {32, 960, 2560, 15, 5, 49152, 8192, 1e-5, rotary(64, 100000), true}},
      {"SmolLM2-1.7B", {24, 2048, 8192, 32, 32, 49152, 8192, 1e-5, rotary(64, 130000), true}},
      {"TinyLlama-1.1B", {22, 2048, 5632, 32, 4, 32000, 2048, 1e-5, rotary(64, 10000), false}},
      {"Llama-2-7B", {32, 4096, 11008, 32, 32, 32000, 4096, 1e-5, rotary(128, 10000), false}},
      {"Llama-3-8B", {32, 4096, 14336, 32, 8, 128256, 8192, 1e-5, rotary(128, 500000), false}},
      {"Llama-3.1-8B", {32, 4096, 14336, 32, 8, 128256, 131072, 1e-5, rotary(128, 500000, llama3(8)), false}},
      {"Llama-3.2-1B", {16, 2048, 8192, 32, 8, 128256, 131072, 1e-5, rotary(64, 500000, llama3(32)), true}},
      {"Llama-3.2-3B", {28, 3072, 8192, 24, 8, 128256, 131072, 1e-5, rotary(128, 500000, llama3(32)), true}},
  }};
  return all;
}

}  // namespace

std::vector<std::string> llama_names() { return released_names(released_llama()); }

LlamaOptions llama_options(std::string_view name) { return released_options("llama", released_llama(), name); }

}  // namespace snug::models
