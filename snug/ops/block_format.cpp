#include "snug/ops/block_format.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "snug/base/errors.h"

// The encodings are those of ggml (ggml-quants), which has no other specification. This file is compiled without
// contraction of products and sums, so that every bit is theirs.

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

using Block = const std::uint8_t*;

template <class T>
T load(Block from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

float half(Block from) { return static_cast<float>(load<c10::Half>(from)); }

// --- blocks of 32: the low nibbles are elements 0 to 15, the high ones 16 to 31
// ---------------------------------------

void q4_0(Block b, float* out) {
  const float scale = half(b);
  for (int i = 0; i < 16; ++i) {
    const int q = b[2 + i];
    out[i] = static_cast<float>((q & 15) - 8) * scale;
    out[i + 16] = static_cast<float>((q >> 4) - 8) * scale;
  }
}

void q4_1(Block b, float* out) {
  const float scale = half(b), least = half(b + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = b[4 + i];
    out[i] = static_cast<float>(q & 15) * scale + least;
    out[i + 16] = static_cast<float>(q >> 4) * scale + least;
  }
}

/// The fifth bits of all elements stand together in front of the nibbles.
int fifth(std::uint32_t bits, int element) { return static_cast<int>(bits >> element & 1U) << 4; }

void q5_0(Block b, float* out) {
  const float scale = half(b);
  const auto fifths = load<std::uint32_t>(b + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = b[6 + i];
    out[i] = static_cast<float>(((q & 15) | fifth(fifths, i)) - 16) * scale;
    out[i + 16] = static_cast<float>(((q >> 4) | fifth(fifths, i + 16)) - 16) * scale;
  }
}

void q5_1(Block b, float* out) {
  const float scale = half(b), least = half(b + 2);
  const auto fifths = load<std::uint32_t>(b + 4);
  for (int i = 0; i < 16; ++i) {
    const int q = b[8 + i];
    out[i] = static_cast<float>((q & 15) | fifth(fifths, i)) * scale + least;
    out[i + 16] = static_cast<float>((q >> 4) | fifth(fifths, i + 16)) * scale + least;
  }
}

void q8_0(Block b, float* out) {
  const float scale = half(b);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(std::bit_cast<std::int8_t>(b[2 + i])) * scale;
}

// --- blocks of 256: eight groups of 32, or sixteen of 16, with quantized scales
// ----------------------------------------

struct GroupScale {
  float scale, least;
};

/// Scale and minimum of a group of 32: 6 bits each, packed into 12 bytes; the upper two bits of the last four scales
/// and minima stand above the first four.
GroupScale group_scale(Block packed, int group, float scale, float least) {
  int s = 0, m = 0;
  if (group < 4) {
    s = packed[group] & 63;
    m = packed[group + 4] & 63;
  } else {
    s = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4);
    m = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4);
  }
  return {scale * static_cast<float>(s), least * static_cast<float>(m)};
}

void q4_k(Block b, float* out) {
  const float scale = half(b), least = half(b + 2);
  const Block nibbles = b + 16;
  for (int group = 0; group < 8; ++group) {
    const GroupScale g = group_scale(b + 4, group, scale, least);
    const Block from = nibbles + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) *out++ = g.scale * static_cast<float>(from[i] >> shift & 15) - g.least;
  }
}

void q5_k(Block b, float* out) {
  const float scale = half(b), least = half(b + 2);
  const Block fifths = b + 16, nibbles = b + 48;
  for (int group = 0; group < 8; ++group) {
    const GroupScale g = group_scale(b + 4, group, scale, least);
    const Block from = nibbles + group / 2 * 32;
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      const int q = (from[i] >> shift & 15) + ((fifths[i] >> group & 1) << 4);
      *out++ = g.scale * static_cast<float>(q) - g.least;
    }
  }
}

void q6_k(Block b, float* out) {
  const float scale = half(b + 208);
  for (int part = 0; part < 2; ++part) {
    const Block low = b + part * 64, high = b + 128 + part * 32, scales = b + 192 + part * 8;
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        const int nibble = low[i + quarter % 2 * 32] >> (quarter / 2 * 4) & 15;
        const int q = (nibble | ((high[i] >> (quarter * 2) & 3) << 4)) - 32;
        const auto group = static_cast<float>(std::bit_cast<std::int8_t>(scales[quarter * 2 + i / 16]));
        *out++ = scale * group * static_cast<float>(q);
      }
    }
  }
}

}  // namespace

const BlockLayout* find_block_layout(std::uint32_t number) {
  const auto* const found =
      std::ranges::find(kLayouts, number, [](const BlockLayout& l) { return static_cast<std::uint32_t>(l.format); });
  return found == kLayouts.end() ? nullptr : found;
}

const BlockLayout& block_layout(BlockFormat format) { return *find_block_layout(static_cast<std::uint32_t>(format)); }

void dequantize(BlockFormat format, std::span<const std::uint8_t> blocks, std::span<float> out) {
  const BlockLayout& layout = block_layout(format);
  const std::size_t count = blocks.size() / layout.bytes;
  if (count * layout.bytes != blocks.size() || count * layout.elements != out.size()) {
    throw Error(fmt::format("dequantizing {}: {} bytes for {} elements; {} bytes hold {}", layout.name, blocks.size(),
                            out.size(), layout.bytes, layout.elements));
  }
  const auto decode = [&](auto block) {
    for (std::size_t i = 0; i < count; ++i) {
      block(blocks.data() + i * layout.bytes, out.data() + i * layout.elements);
    }
  };
  switch (format) {
    case BlockFormat::F32:
      return decode([](Block b, float* o) { *o = load<float>(b); });
    case BlockFormat::F16:
      return decode([](Block b, float* o) { *o = half(b); });
    case BlockFormat::BF16:
      return decode([](Block b, float* o) { *o = static_cast<float>(load<c10::BFloat16>(b)); });
    case BlockFormat::Q4_0:
      return decode(q4_0);
    case BlockFormat::Q4_1:
      return decode(q4_1);
    case BlockFormat::Q5_0:
      return decode(q5_0);
    case BlockFormat::Q5_1:
      return decode(q5_1);
    case BlockFormat::Q8_0:
      return decode(q8_0);
    case BlockFormat::Q4_K:
      return decode(q4_k);
    case BlockFormat::Q5_K:
      return decode(q5_k);
    case BlockFormat::Q6_K:
      return decode(q6_k);
  }
}

}  // namespace snug::ops
