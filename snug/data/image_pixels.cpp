#include "snug/data/image_pixels.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "snug/base/errors.h"

namespace snug::data {

void refuse_image(std::string_view name, std::string_view reason) {
  throw UsageError(fmt::format("image: {}: {}; write it anew or take it out of the folder", name, reason));
}

at::Tensor room_for_pixels(std::int64_t height, std::int64_t width, std::int64_t channels, std::int64_t most_pixels,
                           std::string_view name) {
  if (height < 1 || width < 1) refuse_image(name, fmt::format("{} by {} pixels are none", width, height));
  if (width > most_pixels / height) {
    throw UsageError(
        fmt::format("image: {}: {} by {} pixels are more than the {} allowed; shrink it, or set most_pixels if it is "
                    "to be trusted",
                    name, width, height, most_pixels));
  }
  return at::empty({height, width, channels}, at::kByte);
}

}  // namespace snug::data
