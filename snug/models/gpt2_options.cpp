#include <array>

#include "snug/models/gpt2.h"
#include "snug/models/released.h"

namespace snug::models {
namespace {

/// As their config.json files have them.
const std::array<Released<Gpt2Options>, 4>& released_gpt2() {
  static const std::array<Released<Gpt2Options>, 4> all{{
      {"gpt2", {.layers = 12, .width = 768, .inner_width = 3072, .heads = 12}},
      {"gpt2-medium", {.layers = 24, .width = 1024, .inner_width = 4096, .heads = 16}},
      {"gpt2-large", {.layers = 36, .width = 1280, .inner_width = 5120, .heads = 20}},
      {"gpt2-xl", {.layers = 48, .width = 1600, .inner_width = 6400, .heads = 25}},
  }};
  return all;
}

}  // namespace

std::vector<std::string> gpt2_names() { return released_names(released_gpt2()); }

Gpt2Options gpt2_options(std::string_view name) { return released_options("gpt2", released_gpt2(), name); }

std::optional<std::string> gpt2_name(std::string_view name) {
  constexpr std::string_view kPrefix = "transformer.";
  if (name == "lm_head.weight" || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) {
    return std::nullopt;
  }
  return name.starts_with(kPrefix) ? std::string(name) : fmt::format("{}{}", kPrefix, name);
}

}  // namespace snug::models
