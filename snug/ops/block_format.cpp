#include "snug/ops/block_format.h"

#include <algorithm>
#include <array>

namespace snug::ops {
namespace {

constexpr std::array kLayouts{
    BlockLayout{BlockFormat::F32, "F32", 1, 4},       BlockLayout{BlockFormat::F16, "F16", 1, 2},
    BlockLayout{BlockFormat::Q4_0, "Q4_0", 32, 18},   BlockLayout{BlockFormat::Q4_1, "Q4_1", 32, 20},
    BlockLayout{BlockFormat::Q5_0, "Q5_0", 32, 22},   BlockLayout{BlockFormat::Q5_1, "Q5_1", 32, 24},
    BlockLayout{BlockFormat::Q8_0, "Q8_0", 32, 34},   BlockLayout{BlockFormat::Q4_K, "Q4_K", 256, 144},
    BlockLayout{BlockFormat::Q5_K, "Q5_K", 256, 176}, BlockLayout{BlockFormat::Q6_K, "Q6_K", 256, 210},
    BlockLayout{BlockFormat::BF16, "BF16", 1, 2},
};

}  // namespace

const BlockLayout* find_block_layout(std::uint32_t number) {
  const auto* const found =
      std::ranges::find(kLayouts, number, [](const BlockLayout& l) { return static_cast<std::uint32_t>(l.format); });
  return found == kLayouts.end() ? nullptr : found;
}

const BlockLayout& block_layout(BlockFormat format) { return *find_block_layout(static_cast<std::uint32_t>(format)); }

}  // namespace snug::ops
