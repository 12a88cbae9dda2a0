#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace snug::data {

/// The pixels of a JPEG file as RGB, uint8, (height, width, 3), through libjpeg; grey and CMYK are converted, and a
/// note on how the picture is to be turned is left alone. `name` is the file's for errors. Throws UsageError when the
/// file is damaged or cut off, also where a viewer would show something, and when it has more pixels than allowed. A
/// progressive file takes 6 bytes more for each pixel while it is decoded, which no allocator counts.
at::Tensor decode_jpeg(std::span<const std::uint8_t> file, std::string_view name, std::int64_t most_pixels);

}  // namespace snug::data
