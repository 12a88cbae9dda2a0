#include "snug/data/image_file.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <string>
#include <system_error>

#include "snug/base/mapped_file.h"
#include "snug/data/image_pixels.h"
#include "snug/data/jpeg_image.h"
#include "snug/data/png_image.h"

namespace snug::data {
namespace {

template <std::size_t kCount>
bool begins_with(std::span<const std::uint8_t> file, const std::array<std::uint8_t, kCount>& magic) {
  return file.size() >= kCount && std::ranges::equal(file.first(kCount), magic);
}

at::Tensor grey_of(const at::Tensor& rgb) {
  at::Tensor grey = at::empty({1, rgb.size(0), rgb.size(1)}, at::kByte);
  auto* out = grey.mutable_data_ptr<std::uint8_t>();
  const auto* in = rgb.const_data_ptr<std::uint8_t>();
  for (const auto* const end = in + rgb.numel(); in != end; in += 3) {
    // 0.299, 0.587 and 0.114 in 65536ths, whose sum is one.
    *out++ = static_cast<std::uint8_t>((19595U * in[0] + 38470U * in[1] + 7471U * in[2] + 0x8000U) >> 16U);
  }
  return grey;
}

}  // namespace

at::Tensor decode_image(std::span<const std::uint8_t> file, std::string_view name, const ImageFileOptions& options) {
  constexpr std::array<std::uint8_t, 3> kJpeg{0xFF, 0xD8, 0xFF};
  constexpr std::array<std::uint8_t, 8> kPng{0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
  at::Tensor pixels;
  if (begins_with(file, kJpeg)) {
    pixels = decode_jpeg(file, name, options.most_pixels);
  } else if (begins_with(file, kPng)) {
    pixels = decode_png(file, name, options.most_pixels);
  } else {
    refuse_image(name, "it begins neither as a JPEG nor as a PNG file does");
  }
  return options.colours == Colours::Grey ? grey_of(pixels) : pixels.permute({2, 0, 1}).contiguous();
}

at::Tensor read_image(const std::filesystem::path& path, const ImageFileOptions& options) {
  try {
    const MappedFile file(path);
    return decode_image(file.bytes(), path.string(), options);
  } catch (const std::system_error& error) {
    refuse_image(path.string(), error.code().message());
  }
}

}  // namespace snug::data
