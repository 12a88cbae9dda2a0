#include "snug/memory/tensor_rounding.h"

#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace snug::memory {
namespace {

constexpr std::int64_t kInGroup = kGroupOfNumbers;
constexpr float kFlat = 1e-30F;  // as in rounding_kernel.cpp, whose bits these are
constexpr float kTooLarge = 0x1p127F;
constexpr float kMostFloat8 = 448;

std::int64_t groups_in(std::int64_t numbers) { return (numbers + kInGroup - 1) / kInGroup; }

/// A device has it: a scalar of the host's would be divided by as by a reciprocal.
at::Tensor constant(const at::Tensor& like, float number) { return at::full({1}, number, like.options()); }

/// work(numbers, how many groups, their length): whole groups, then what is left.
template <class Work>
void for_groups(std::int64_t count, const Work& work) {
  const std::int64_t whole = count / kInGroup;
  if (whole > 0) work(0, whole, kInGroup);
  if (count % kInGroup != 0) work(whole * kInGroup, 1, count % kInGroup);
}

at::Tensor as_fp32(std::size_t element, const at::Tensor& contents, std::int64_t first, std::int64_t count) {
  const c10::ScalarType type = element == sizeof(float) ? at::kFloat : at::kBFloat16;
  return numbers_of(contents, type, first * static_cast<std::int64_t>(element), count).to(at::kFloat);
}

// --- numbers that look random --------------------------------------------------------------------------------------

constexpr std::int32_t wrapped(std::uint32_t bits) { return static_cast<std::int32_t>(bits); }

/// x ^= x >> by, as of numbers without a sign.
void xor_shift(const at::Tensor& x, const at::Tensor& scratch, int by) {
  at::Tensor shifted = scratch;
  at::bitwise_right_shift_out(shifted, x, by);
  shifted.bitwise_and_((std::int64_t{1} << (32 - by)) - 1);
  x.bitwise_xor_(shifted);
}

/// From [0, 1), of 24 bits, by what the numbers are and where they stand, in what scratch becomes.
at::Tensor random_from(const at::Tensor& numbers, std::int64_t first, const at::Tensor& scratch) {
  at::Tensor x = numbers.view(at::kInt).mul(wrapped(0x9E3779B1U));
  at::Tensor where = scratch;
  const auto begin = static_cast<std::uint32_t>(first);
  at::arange_out(where, numbers.numel());
  x.add_(where.mul_(wrapped(0x85EBCA77U)).add_(wrapped(begin * 0x85EBCA77U)));
  xor_shift(x, where, 15);
  x.mul_(wrapped(0x2C1B3C6DU));
  xor_shift(x, where, 12);
  x.mul_(wrapped(0x297A2D39U));
  xor_shift(x, where, 15);
  at::bitwise_right_shift_out(where, x, 8);
  where.bitwise_and_(0xFFFFFF);
  at::Tensor random = x.view(at::kFloat);
  return random.copy_(where).mul_(0x1p-24F);
}

// --- codes of groups: numbers [groups, length], scales [groups, as many as there are], a byte each ----------------

struct TensorFloat8 {
  static constexpr std::int64_t kScales = 1, kBits = 8;
  static void encode(const at::Tensor& numbers, std::int64_t, const at::Tensor& scales, const at::Tensor& codes,
                     Fits& fits) {
    const at::Tensor most = numbers.abs().amax(1, /*keepdim=*/true);
    fits.only_if(most.amax().lt(std::numeric_limits<float>::infinity()));
    const at::Tensor flat = most.lt(kFlat), largest = constant(numbers, kMostFloat8);
    scales.copy_(most.div(largest).masked_fill_(flat, 0));
    const at::Tensor per_unit = largest.div(most).masked_fill_(flat, 0);
    codes.view(at::kFloat8_e4m3fn).copy_(numbers.mul(per_unit).clamp_(-kMostFloat8, kMostFloat8));
  }
  static at::Tensor decode(const at::Tensor& codes, const at::Tensor& scales) {
    return codes.view(at::kFloat8_e4m3fn).to(at::kFloat).mul_(scales);
  }
};

template <int kLast, std::int64_t kBitsOfOne>
struct TensorLevels {
  static constexpr std::int64_t kScales = 2, kBits = kBitsOfOne;
  static void encode(const at::Tensor& numbers, std::int64_t first, const at::Tensor& scales, const at::Tensor& codes,
                     Fits& fits) {
    const at::Tensor low = numbers.amin(1, /*keepdim=*/true), high = numbers.amax(1, /*keepdim=*/true);
    const at::Tensor range = high - low;
    fits.only_if(low.amin().gt(-kTooLarge));  // no number is none of these
    fits.only_if(high.amax().lt(kTooLarge));
    fits.only_if(range.amax().lt(std::numeric_limits<float>::max()));
    const at::Tensor flat = range.lt(kFlat), last = constant(numbers, kLast);
    scales.narrow(1, 0, 1).copy_(low);
    scales.narrow(1, 1, 1).copy_(range.div(last).masked_fill_(flat, 0));
    at::Tensor level = numbers.sub(low).mul_(last.div(range).masked_fill_(flat, 0));
    const at::Tensor scratch = at::empty(numbers.sizes(), numbers.options().dtype(at::kInt));
    level.view({-1}).add_(random_from(numbers.view({-1}), first, scratch.view({-1})));
    codes.copy_(level.clamp_max_(kLast));
  }
  static at::Tensor decode(const at::Tensor& codes, const at::Tensor& scales) {
    return codes.to(at::kFloat).mul_(scales.narrow(1, 1, 1)).add_(scales.narrow(1, 0, 1));
  }
};

/// Scales of all groups; then their codes.
template <class As>
struct RoundedTensor {
  static std::int64_t bytes_of_scales(std::int64_t count) {
    return groups_in(count) * As::kScales * static_cast<std::int64_t>(sizeof(float));
  }

  static at::Tensor scales_of(const at::Tensor& code, std::int64_t first, std::int64_t groups) {
    return numbers_of(code, at::kFloat, bytes_of_scales(first), groups * As::kScales).view({groups, As::kScales});
  }
  static at::Tensor codes_of(const at::Tensor& code, std::int64_t all, std::int64_t first, std::int64_t count) {
    return code.narrow(0, bytes_of_scales(all) + first * As::kBits / 8, (count * As::kBits + 7) / 8);
  }

  static void encode(std::size_t element, const at::Tensor& contents, const at::Tensor& to, Fits& fits) {
    const std::int64_t all = contents.numel() / static_cast<std::int64_t>(element);
    for_pieces(all, [&](std::int64_t piece, std::int64_t count) {
      const at::Tensor wide = as_fp32(element, contents, piece, count);
      const at::Tensor codes = codes_of(to, all, piece, count);
      // A byte each, and one for the half of a last byte.
      const at::Tensor apart =
          As::kBits == 8 ? codes : at::empty({count + count % 2}, contents.options().dtype(at::kByte));
      for_groups(count, [&](std::int64_t first, std::int64_t groups, std::int64_t length) {
        const auto here = [&](const at::Tensor& t) {
          return t.narrow(0, first, groups * length).view({groups, length});
        };
        As::encode(here(wide), piece + first, scales_of(to, piece + first, groups), here(apart), fits);
      });
      if (As::kBits == 8) return;
      if (count % 2 != 0) apart.narrow(0, count, 1).zero_();
      const at::Tensor pairs = apart.view({-1, 2});
      codes.copy_(pairs.select(1, 1)).mul_(16).add_(pairs.select(1, 0));
    });
  }

  static void decode(std::size_t element, const at::Tensor& from, const at::Tensor& contents) {
    const c10::ScalarType type = element == sizeof(float) ? at::kFloat : at::kBFloat16;
    const std::int64_t all = contents.numel() / static_cast<std::int64_t>(element);
    for_pieces(all, [&](std::int64_t piece, std::int64_t count) {
      at::Tensor apart = codes_of(from, all, piece, count);
      if (As::kBits != 8) {
        const at::Tensor both = at::empty({apart.numel(), 2}, apart.options());
        both.select(1, 0).copy_(apart).bitwise_and_(15);
        at::Tensor upper = both.select(1, 1);
        at::bitwise_right_shift_out(upper, apart, 4);
        apart = both.view({-1});
      }
      for_groups(count, [&](std::int64_t first, std::int64_t groups, std::int64_t length) {
        const at::Tensor codes = apart.narrow(0, first, groups * length).view({groups, length});
        const at::Tensor numbers = As::decode(codes, scales_of(from, piece + first, groups));
        const std::int64_t begin = (piece + first) * static_cast<std::int64_t>(element);
        numbers_of(contents, type, begin, groups * length).copy_(numbers.view({-1}));
      });
    });
  }
};

/// fp32 numbers, and no others.
struct TensorBFloat16 {
  static void encode(std::size_t, const at::Tensor& contents, const at::Tensor& to, Fits& fits) {
    constexpr float kInfinite = std::numeric_limits<float>::infinity();
    for_pieces(contents.numel() / 4, [&](std::int64_t first, std::int64_t count) {
      const at::Tensor halves = numbers_of(to, at::kBFloat16, first * 2, count);
      halves.copy_(numbers_of(contents, at::kFloat, first * 4, count));
      fits.only_if(halves.amax().lt(kInfinite));
      fits.only_if(halves.amin().gt(-kInfinite));
    });
  }
  static void decode(std::size_t, const at::Tensor& from, const at::Tensor& contents) {
    contents.view(at::kFloat).copy_(numbers_of(from, at::kBFloat16, 0, contents.numel() / 4));
  }
};

template <class Call>
auto with_tensor_code(Codec codec, const Call& call) {
  switch (codec) {
    case Codec::BFloat16:
      return call(TensorBFloat16());
    case Codec::Float8:
      return call(RoundedTensor<TensorFloat8>());
    case Codec::Int8:
      return call(RoundedTensor<TensorLevels<255, 8>>());
    default:
      return call(RoundedTensor<TensorLevels<15, 4>>());
  }
}

}  // namespace

void encode_rounded(Codec codec, std::size_t element, const at::Tensor& contents, const at::Tensor& to, Fits& fits) {
  with_tensor_code(codec, [&](auto code) { decltype(code)::encode(element, contents, to, fits); });
}

void decode_rounded(Codec codec, std::size_t element, const at::Tensor& from, const at::Tensor& contents) {
  with_tensor_code(codec, [&](auto code) { decltype(code)::decode(element, from, contents); });
}

}  // namespace snug::memory
