// The encodings are those of ggml (ggml-quants), which has no other specification. Products and sums are rounded one by
// one, so that every bit is theirs.
#include <bit>
#include <cstring>

#include "snug/ops/kernels/declared.h"
#include "snug/ops/kernels/lanes.h"

namespace snug::ops::kernels::CPU_CAPABILITY {
namespace {

using Block = const std::uint8_t*;

template <class T>
T read(Block from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// fp16 as fp32, which has all of its numbers.
float half(Block from) {
  const auto bits = read<std::uint16_t>(from);
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000) << 16;
  const std::uint32_t exponent = bits >> 10 & 31U, fraction = bits & 1023U;
  if (exponent == 0) {
    const float small = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -small : small;
  }
  const std::uint32_t moved = exponent == 31 ? 255 : exponent + 112;
  return std::bit_cast<float>(sign | moved << 23 | fraction << 13);
}

float bfloat16(Block from) { return std::bit_cast<float>(static_cast<std::uint32_t>(read<std::uint16_t>(from)) << 16); }

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
  const auto fifths = read<std::uint32_t>(b + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = b[6 + i];
    out[i] = static_cast<float>(((q & 15) | fifth(fifths, i)) - 16) * scale;
    out[i + 16] = static_cast<float>(((q >> 4) | fifth(fifths, i + 16)) - 16) * scale;
  }
}

void q5_1(Block b, float* out) {
  const float scale = half(b), least = half(b + 2);
  const auto fifths = read<std::uint32_t>(b + 4);
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
    for (int i = 0; i < 32; ++i) out[group * 32 + i] = g.scale * static_cast<float>(from[i] >> shift & 15) - g.least;
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
      out[group * 32 + i] = g.scale * static_cast<float>(q) - g.least;
    }
  }
}

void q6_k(Block b, float* out) {
  const float scale = half(b + 208);
  for (int part = 0; part < 2; ++part) {
    const Block low = b + part * 64, high = b + 128 + part * 32, scales = b + 192 + part * 8;
    for (int quarter = 0; quarter < 4; ++quarter) {
      const Block nibbles = low + quarter % 2 * 32;
      const int shift = quarter / 2 * 4;
      for (int half_of_it = 0; half_of_it < 2; ++half_of_it) {
        const float group = scale * static_cast<float>(std::bit_cast<std::int8_t>(scales[quarter * 2 + half_of_it]));
        for (int k = 0; k < 16; ++k) {
          const int i = half_of_it * 16 + k;
          const int q = ((nibbles[i] >> shift & 15) | ((high[i] >> (quarter * 2) & 3) << 4)) - 32;
          out[part * 128 + quarter * 32 + i] = group * static_cast<float>(q);
        }
      }
    }
  }
}

constexpr std::int64_t kMost = 256;  // numbers in a block, and of those without blocks at a time

template <typename T>
void store_all(const float* values, T* out, std::int64_t count) {
  using Math = typename Lanes<T>::Math;
  Math raised[kMost];
  for (std::int64_t i = 0; i < count; ++i) raised[i] = values[i];
  for (std::int64_t i = 0; i < count; i += Lanes<T>::kWidth) {
    const std::int64_t here = std::min(Lanes<T>::kWidth, count - i);
    Lanes<T>::load_math(raised + i, here).store(out + i, here);
  }
}

/// Decodes blocks of so many numbers and bytes.
template <std::int64_t kNumbers, std::int64_t kBytes, typename T, typename Decode>
void decode_blocks(const PackedNumbers& all, T* out, std::int64_t first, std::int64_t last, const Decode& decode) {
  for (std::int64_t i = first; i < last; ++i) {
    alignas(64) float values[kNumbers];
    decode(all.blocks + i * kBytes, values);
    store_all(values, out + i * kNumbers, kNumbers);
  }
}

/// Of numbers that stand alone.
template <std::int64_t kBytes, typename T, typename Decode>
void decode_numbers(const PackedNumbers& all, T* out, std::int64_t first, std::int64_t last, const Decode& decode) {
  for (std::int64_t i = first; i < last; i += kMost) {
    const std::int64_t here = std::min(kMost, last - i);
    alignas(64) float values[kMost];
    for (std::int64_t k = 0; k < here; ++k) values[k] = decode(all.blocks + (i + k) * kBytes);
    store_all(values, out + i, here);
  }
}

}  // namespace

void decode(c10::ScalarType type, const PackedNumbers& all, std::int64_t first, std::int64_t last) {
  for_type(type, [&](auto number) {
    auto* const out = static_cast<decltype(number)*>(all.out);
    switch (all.format) {
      case BlockFormat::F32:
        return decode_numbers<4>(all, out, first, last, [](Block b) { return read<float>(b); });
      case BlockFormat::F16:
        return decode_numbers<2>(all, out, first, last, half);
      case BlockFormat::BF16:
        return decode_numbers<2>(all, out, first, last, bfloat16);
      case BlockFormat::Q4_0:
        return decode_blocks<32, 18>(all, out, first, last, q4_0);
      case BlockFormat::Q4_1:
        return decode_blocks<32, 20>(all, out, first, last, q4_1);
      case BlockFormat::Q5_0:
        return decode_blocks<32, 22>(all, out, first, last, q5_0);
      case BlockFormat::Q5_1:
        return decode_blocks<32, 24>(all, out, first, last, q5_1);
      case BlockFormat::Q8_0:
        return decode_blocks<32, 34>(all, out, first, last, q8_0);
      case BlockFormat::Q4_K:
        return decode_blocks<256, 144>(all, out, first, last, q4_k);
      case BlockFormat::Q5_K:
        return decode_blocks<256, 176>(all, out, first, last, q5_k);
      case BlockFormat::Q6_K:
        return decode_blocks<256, 210>(all, out, first, last, q6_k);
    }
  });
}

}  // namespace snug::ops::kernels::CPU_CAPABILITY
