#include <array>

#include "snug/models/released.h"
#include "snug/models/vit.h"

namespace snug::models {
namespace {

/// Table 1 of the paper.
const std::array<Released<VitOptions>, 5>& released_vit() {
  static const std::array<Released<VitOptions>, 5> all{{
      {"ViT-B/16", {.layers = 12, .width = 768, .inner_width = 3072, .heads = 12, .patch = 16}},
      {"ViT-B/32", {.layers = 12, .width = 768, .inner_width = 3072, .heads = 12, .patch = 32}},
      {"ViT-L/16", {.layers = 24, .width = 1024, .inner_width = 4096, .heads = 16, .patch = 16}},
      {"ViT-L/32", {.layers = 24, .width = 1024, .inner_width = 4096, .heads = 16, .patch = 32}},
      {"ViT-H/14", {.layers = 32, .width = 1280, .inner_width = 5120, .heads = 16, .patch = 14}},
  }};
  return all;
}

}  // namespace

std::vector<std::string> vit_names() { return released_names(released_vit()); }

VitOptions vit_options(std::string_view name) { return released_options("vit", released_vit(), name); }

}  // namespace snug::models
