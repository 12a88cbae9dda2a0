#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace snug::data {

/// The pixels of a PNG file as RGB, uint8, (height, width, 3), through libpng: grey and palettes are converted, of 16
/// bits the upper 8 are taken, transparency and notes on colour are left alone, as Pillow's convert("RGB") does (but of
/// grey of 16 bits, which it clips).
/// `name` is the file's for errors. Throws UsageError when the file is damaged or cut off and when it has more pixels
/// than allowed.
at::Tensor decode_png(std::span<const std::uint8_t> file, std::string_view name, std::int64_t most_pixels);

}  // namespace snug::data
