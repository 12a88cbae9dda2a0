#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace snug::data {

/// Says that an image file is not what its format says.
[[noreturn]] void refuse_image(std::string_view name, std::string_view reason);

/// Memory for what a decoder makes of a file: uint8, (height, width, channels). Throws UsageError when there is no
/// pixel or more than `most_pixels`, before anything is allocated.
at::Tensor room_for_pixels(std::int64_t height, std::int64_t width, std::int64_t channels, std::int64_t most_pixels,
                           std::string_view name);

}  // namespace snug::data
