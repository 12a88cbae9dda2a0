#include <array>

#include "snug/models/released.h"
#include "snug/models/resnet.h"

namespace snug::models {
namespace {

/// Table 1 of the paper.
const std::array<Released<ResnetOptions>, 5>& released_resnet() {
  static const std::array<Released<ResnetOptions>, 5> all{{
      {"ResNet-18", {.blocks = BasicBlocks{}, .depths = {2, 2, 2, 2}}},
      {"ResNet-34", {.blocks = BasicBlocks{}, .depths = {3, 4, 6, 3}}},
      {"ResNet-50", {.blocks = Bottlenecks{}, .depths = {3, 4, 6, 3}}},
      {"ResNet-101", {.blocks = Bottlenecks{}, .depths = {3, 4, 23, 3}}},
      {"ResNet-152", {.blocks = Bottlenecks{}, .depths = {3, 8, 36, 3}}},
  }};
  return all;
}

}  // namespace

std::vector<std::string> resnet_names() { return released_names(released_resnet()); }

ResnetOptions resnet_options(std::string_view name) { return released_options("resnet", released_resnet(), name); }

}  // namespace snug::models
